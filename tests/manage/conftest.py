"""A broker with the management API, an API client and an AMQP client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.server import BrokerServer
from tests.in_process import client_of, running_broker
from tests.manage.api_talk import HTTP, Api


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerServer]:
    """Provide a broker with its HTTP API."""
    async with running_broker(tmp_path / "data", http=HTTP) as broker:
        yield broker


@pytest.fixture
def api(broker: BrokerServer) -> Iterator[Api]:
    """Provide a client of guest."""
    api = Api(broker)
    yield api
    api.close()


@pytest.fixture
async def channel(broker: BrokerServer) -> AsyncIterator[Any]:
    """Provide a channel of an AMQP client, with confirms."""
    async with client_of(broker) as channel:
        yield channel
