"""The start of HTTP: asked for, by default, without the extra, with a taken port, and early."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from broker.amqp.errors import BrokerError
from broker.net.address import AddressTaken, CannotListen, bind
from broker.parts.http import Http as HttpPart
from broker.parts.part import Shared
from broker.parts.ports import Ports
from broker.server import BrokerServer
from broker.settings import Settings
from broker.settings.access import Http, Metrics
from broker.store.data_folder import DataFolder
from broker.store.files import Files
from tests.broker_process import PACKAGE, BrokerProcess
from tests.http_talk import Web, ask
from tests.in_process import RESERVE_BYTES, running_broker

# Every process reads this at its start: this one is as if the extra were not installed.
WITHOUT_EXTRA = 'import sys; sys.modules["uvicorn"] = None'


@contextmanager
def taken_port() -> Iterator[int]:
    """Provide a port that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def left_to_itself(port: int) -> Settings:
    """Return settings that say nothing about HTTP, whose default port is this one."""
    http = Http.model_construct(_fields_set=set(), port=port)
    metrics = Metrics(enabled=False)
    return Settings().model_copy(update={"http": http, "metrics": metrics})


def part_of(settings: Settings) -> HttpPart:
    """Return the part of a broker that has no AMQP port."""
    shared = Shared(settings, Files(), Path(), time.time, fail=lambda _: None)
    return HttpPart(shared, Ports(shared))


async def test_a_taken_port_is_only_a_warning_where_nobody_asked_for_it() -> None:
    """A second broker on a machine starts as before; the event says what its HTTP lacks."""
    with taken_port() as port:
        with capture_logs() as events:
            part = part_of(left_to_itself(port))
            await part.open()
        assert not part.is_on
        assert [(event["event"], event["port"]) for event in events] == [("http.off", "http")]
        assert events[0]["log_level"] == "warning" and f"port {port} on 127.0.0.1 is in use" in events[0]["reason"]
        for asked in ({"enabled": True, "port": port}, {"port": port}, {"host": "127.0.0.1", "port": port}):
            with pytest.raises(AddressTaken, match=r"another one: http\.port"):
                await part_of(Settings(http=asked, metrics={"enabled": False})).open()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("asked", [False, True])
def test_a_port_that_another_broker_takes_between_two_steps(
    asked: bool, new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two brokers that start together both bind the port, and one listens; the other has no HTTP and says so."""

    def bind_second(*arguments: Any) -> list[socket.socket]:
        bound = bind(*arguments)
        other[0].listen()
        return bound

    async def start(settings: Settings) -> None:
        part = part_of(settings)
        try:
            with pytest.raises(CannotListen) if asked else nullcontext():
                await part.open()
        finally:
            await part.close()
        assert part.port() == 0

    monkeypatch.setattr("broker.parts.http.bind", bind_second)
    other = bind("127.0.0.1", 0)
    port = other[0].getsockname()[1]
    settings = Settings(http={"port": port}, metrics={"enabled": False}) if asked else left_to_itself(port)
    with other[0], asyncio.Runner(loop_factory=new_loop) as runner, capture_logs() as events:
        runner.run(start(settings))
    assert [event["event"] for event in events] == ([] if asked else ["http.off"])


async def test_a_port_that_was_bound_is_released_when_the_next_one_is_taken() -> None:
    """A start that fails leaves nothing behind."""
    with taken_port() as port:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            free = probe.getsockname()[1]
        with pytest.raises(AddressTaken):
            await part_of(Settings(http={"port": free}, metrics={"port": port})).open()
        socket.create_server(("127.0.0.1", free)).close()


async def test_without_the_extra_a_broker_serves_unless_it_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who asks for HTTP is told which extra to install; others need not know."""
    monkeypatch.setattr("broker.parts.http.find_spec", lambda name: None if name == "uvicorn" else object())
    with capture_logs() as events:
        part = part_of(left_to_itself(0))
        await part.open()
    assert not part.is_on
    assert [(event["event"], event["log_level"]) for event in events] == [("http.off", "info")]
    for name in ("http", "metrics"):
        settings = Settings(**{"http": {"enabled": False}, "metrics": {"enabled": False}, name: {"enabled": True}})
        with pytest.raises(BrokerError, match=rf"{name} needs slotmq\[manage\]: no module uvicorn"):
            await part_of(settings).open()


def test_a_start_without_the_extra_that_was_asked_for_ends_with_2(tmp_path: Path) -> None:
    """One line names the extra, and no folder is created."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_EXTRA)
    path = os.pathsep.join([str(tmp_path), str(PACKAGE)])
    process = BrokerProcess(tmp_path / "data", environment={"PYTHONPATH": path, "SLOTMQ_HTTP__ENABLED": "true"})
    process.spawn()
    assert process.wait() == 2
    assert process.stderr() == "slotmq: http needs slotmq[manage]: no module uvicorn\n"
    assert not process.folder.exists()


async def test_both_ports_answer(tmp_path: Path) -> None:
    """The port for metrics has the probes too, and nothing that needs a login."""
    on = {"enabled": True, "port": 0}
    async with running_broker(tmp_path / "data", http=on, metrics=on) as broker:
        metrics = Web(broker.manage.port("metrics"))
        assert (await metrics.later("GET", "/readyz")).status == 200
        for path in ("/api/whoami", "/v1/store"):
            assert (await metrics.later("GET", path)).status == 404
        metrics.close()
        assert (await ask(broker, "GET", "/api/whoami")).status == 200
        assert broker._facts()["http_url"] == broker.manage.url()


async def test_a_broker_that_recovers_lives_and_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ports accept clients from before recovery, when only the probes have an answer; the same are served later."""
    on: Any = {"enabled": True, "port": 0}
    server, store = {"port": 0, "data_dir": tmp_path / "data"}, {"reserve_bytes": RESERVE_BYTES}
    broker = BrokerServer(Settings(server=server, store=store, http=on, metrics=on))
    monkeypatch.setattr(broker.shared.recovery, "facts", lambda: {"percent": 7})
    came = []

    open_folder = DataFolder.open

    def opening(*arguments: Any, **options: Any) -> DataFolder:
        came.extend([Web(broker.manage.port("http")), Web(broker.manage.port("metrics"), None)])
        for web in came:
            web.connection.connect()
        return open_folder(*arguments, **options)

    monkeypatch.setattr("broker.parts.data.DataFolder.open", opening)
    await broker.recover()
    web, metrics = came
    try:
        for early in (web, metrics):
            assert (await early.later("GET", "/healthz")).json == {"status": "ok"}
            said = await early.later("GET", "/readyz")
            expected = {"status": "unready", "reasons": ["recovering"], "progress": {"percent": 7}}
            assert (said.status, said.json) == (503, expected)
            assert (await early.later("GET", "/readyz?unready=404")).status == 404
        for path in ("/", "/api/overview", "/metrics"):
            assert (await web.later("GET", path)).refusal[:2] == (503, "unavailable")
        await broker.serve()
        assert (await web.later("GET", "/readyz")).status == 200
        assert (await web.later("GET", "/api/whoami")).status == 200
    finally:
        web.close()
        metrics.close()
        await broker.stop()
