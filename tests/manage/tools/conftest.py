"""A broker with the management API for tests of other projects' tools; each test gets its own vhost."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import pytest

from broker.testing import Broker
from tests.http_talk import Web

RABBITMQ_API = os.environ.get("SLOTMQ_TEST_API")
"""The management API of another broker to test, such as http://127.0.0.1:15672; its AMQP URL is SLOTMQ_TEST_URL."""


@dataclass(frozen=True)
class Managed:
    """A broker with a management API, and a vhost."""

    url: str
    """The URL of the management API, without a path."""
    amqp_port: int
    vhost: str

    @property
    def port(self) -> int:
        """The port of the management API."""
        port = urlsplit(self.url).port
        assert port is not None
        return port

    @property
    def amqp_url(self) -> str:
        """The AMQP address of the vhost."""
        return f"amqp://guest:guest@127.0.0.1:{self.amqp_port}/{quote(self.vhost, safe='')}"


@pytest.fixture(scope="module")
def module_broker() -> Iterator[tuple[str, int]]:
    """Provide the address of a management API, and the AMQP port of its broker."""
    if RABBITMQ_API is not None:
        yield RABBITMQ_API, urlsplit(os.environ["SLOTMQ_TEST_URL"]).port or 5672
        return
    with Broker(http={"enabled": True, "port": 0}) as broker:
        yield f"http://127.0.0.1:{broker.server.manage.port()}", broker.port


@pytest.fixture
def managed(module_broker: tuple[str, int]) -> Iterator[Managed]:
    """Provide the broker with a new vhost, which is deleted afterwards."""
    url, amqp_port = module_broker
    found = Managed(url, amqp_port, f"vhost/{uuid.uuid4().hex[:8]}")
    web = Web(found.port)
    vhost = quote(found.vhost, safe="")
    assert web.ask("PUT", f"/api/vhosts/{vhost}").status == 201
    granted = {"configure": ".*", "write": ".*", "read": ".*"}
    assert web.ask("PUT", f"/api/permissions/{vhost}/guest", granted).status in (201, 204)
    yield found
    assert web.ask("DELETE", f"/api/vhosts/{vhost}").status == 204
    web.close()
