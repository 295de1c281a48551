"""Starts of a broker with ØMQ endpoints, as a process and by its settings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import zmq
from pydantic import ValidationError

import broker.zeromq
from broker.amqp.errors import BrokerError
from broker.settings import Settings
from tests.broker_process import BrokerProcess
from tests.in_process import running_broker

ENDPOINT = {"endpoint": "tcp://127.0.0.1:5556", "exchange": "x"}


async def refusal(folder: Path, **endpoint: Any) -> str:
    """Return why a broker does not start."""
    with pytest.raises(BrokerError) as caught:
        async with running_broker(folder, zmq={"publish": [{**ENDPOINT, **endpoint}]}):
            pass
    return str(caught.value)


async def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyzmq the start ends in one line."""
    monkeypatch.setattr(broker, "zeromq", broker.zeromq)  # the start makes another one, which other tests must not see
    for name in [name for name in sys.modules if name.startswith("broker.zeromq")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "zmq", None)
    assert "need slotmq[zmq]" in await refusal(tmp_path)


async def test_an_old_libzmq_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would garble subscriptions of 246 to 255 bytes."""
    monkeypatch.setattr(zmq, "zmq_version_info", lambda: (4, 3, 4))
    assert "the bridge needs 4.3.5 or newer" in await refusal(tmp_path)


async def test_an_endpoint_in_use_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the reason of the system; no socket is left open, and the next start is not hindered."""
    with zmq.Context() as context, context.socket(zmq.PUB) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1")
        endpoint = f"tcp://127.0.0.1:{port}"
        assert await refusal(tmp_path, endpoint=endpoint) == f"cannot listen on {endpoint}: Address already in use"
        both = [{**ENDPOINT, "endpoint": "tcp://127.0.0.1:0"}, {**ENDPOINT, "endpoint": endpoint}]
        with pytest.raises(BrokerError, match="in use"):
            async with running_broker(tmp_path, zmq={"publish": both}):
                pass
    assert "zmq.not_ended" not in caplog.text
    async with running_broker(tmp_path, zmq={"publish": [{**ENDPOINT, "endpoint": endpoint}]}):
        pass


def test_an_endpoint_in_use_ends_the_process_with_1(tmp_path: Path) -> None:
    """One line on standard error, and an exit code that says that another start may succeed."""
    with zmq.Context() as context, context.socket(zmq.PUB) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1")
        file = tmp_path / "slotmq.toml"
        file.write_text(f'[[zmq.subscribe]]\nendpoint = "tcp://127.0.0.1:{port}"\nexchange = "x"\n')
        process = BrokerProcess(tmp_path / "data", "--config", str(file))
        process.spawn()
        assert process.wait() == 1
    assert process.stderr().splitlines()[-1].startswith("slotmq: cannot listen on tcp://")


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"publish": [{**ENDPOINT, "endpoint": "udp://1.2.3.4:1"}]}, "should be tcp://address:port or ipc://path"),
        ({"publish": [{"endpoint": "tcp://*:1"}]}, "Field required"),
        ({"publish": [ENDPOINT], "subscribe": [ENDPOINT]}, "two endpoints are bound to tcp://127.0.0.1:5556"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], fault: str) -> None:
    """An endpoint that ØMQ does not have, no exchange, two sockets at one place."""
    with pytest.raises(ValidationError, match=fault):
        Settings(zmq=settings)


def test_no_bridge_in_a_cluster() -> None:
    """Settings of both are refused."""
    with pytest.raises(ValidationError, match="a node of a cluster has no ØMQ endpoints"):
        Settings(zmq={"publish": [ENDPOINT]}, cluster={"url": "postgresql://localhost/x", "node": "n"})


def test_wildcard_ports_are_different_endpoints() -> None:
    """Each takes a port of its own."""
    wildcard = {**ENDPOINT, "endpoint": "tcp://127.0.0.1:*"}
    assert len(Settings(zmq={"publish": [wildcard, wildcard]}).zmq.publish) == 2
