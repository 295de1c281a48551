"""What every client-level test stands on: a broker to talk to, and names that nobody else uses."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_process import BrokerAddress, BrokerProcess
from tests.raw_client import RawClient

ORACLE_URL = os.environ.get("SLOTMQ_TEST_URL")
"""Another broker (RabbitMQ, say) for every test that does not start or kill its own."""


@pytest.fixture(scope="session")
def _shared_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("shared") / "folder")
    yield process
    if process.alive:
        errors = process.errors()
        code = process.terminate()
        assert code == 0, f"the shared broker ended with {code}:\n{process.stderr()}"
        assert not errors, f"the shared broker logged errors: {errors}"


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerAddress]:
    """Provide the broker shared by all tests that leave it running; one that died fails the test that it died in."""
    if ORACLE_URL:
        yield BrokerAddress.parse(ORACLE_URL)
        return
    process: BrokerProcess = request.getfixturevalue("_shared_process")
    if not process.alive:
        process.process = None
        process.start()
    yield process.address
    assert process.alive, f"the broker died:\n{process.stderr()[-4000:]}"


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Provide a broker of the test's own, not yet started, which it may kill, stop and restart."""
    if ORACLE_URL:
        pytest.skip("starts and kills its own broker")
    process = BrokerProcess(tmp_path / "folder")
    yield process
    process.kill()


@pytest.fixture
def oracle() -> bool:
    """Whether the tests run against another broker, for the few answers in which it is known to differ."""
    return bool(ORACLE_URL)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Provide a name that no other test uses, for queues and exchanges."""
    plain = re.sub(r"[^\w.]+", "-", request.node.name)[:80]  # characters that every client lets pass
    return f"{plain}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def raw(broker: BrokerAddress) -> Iterator[RawClient]:
    """Provide a raw client with an open connection and channel 1 open."""
    with RawClient(broker.host, broker.port) as client:
        client.open()
        client.open_channel(1)
        yield client
