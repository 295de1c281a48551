"""Fixtures of every client-level test: a broker, and unique names."""

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

if "SLOTMQ_TEST_POSTGRES" in os.environ:  # a broker that a test starts would refuse a setting that it does not know
    os.environ["TEST_POSTGRES"] = os.environ.pop("SLOTMQ_TEST_POSTGRES")


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
    """Provide the broker that tests share; if it dies, the test that is running fails."""
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
    """Provide a stopped broker of the test's own, which the test may start, kill and restart."""
    if ORACLE_URL:
        pytest.skip("starts and kills its own broker")
    process = BrokerProcess(tmp_path / "folder")
    yield process
    process.kill()


@pytest.fixture
def oracle() -> bool:
    """Return whether the tests run against another broker, whose answers differ in a few known cases."""
    return bool(ORACLE_URL)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Provide a unique name for queues and exchanges."""
    plain = re.sub(r"[^\w.]+", "-", request.node.name)[:80]  # characters that every client accepts
    return f"{plain}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def raw(broker: BrokerAddress) -> Iterator[RawClient]:
    """Provide a raw client with an open connection and channel 1 open."""
    with RawClient(broker.host, broker.port) as client:
        client.open()
        client.open_channel(1)
        yield client
