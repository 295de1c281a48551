"""Notifications to systemd."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from broker.systemd import EXTENSION_S, TICK_S, Systemd

PROGRESS = {"vhost": "a\nREADY=1", "vhost_number": 1, "vhosts": 2, "percent": 40, "eta_s": 12.3}


class Timers:
    """The part of a loop that runs functions later: when the test says so."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []
        self._run: Callable[[], None] | None = None

    def call_later(self, wait_s: float, run: Callable[[], None]) -> Any:
        self.waits_s.append(wait_s)
        self._run = run
        return self

    def cancel(self) -> None:
        self._run = None

    def ring(self) -> bool:
        """Run what waits, and return whether something did."""
        run, self._run = self._run, None
        if run is not None:
            run()
        return run is not None


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[socket.socket]:
    """Provide the socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)
        yield receiver


def told(heard: socket.socket) -> list[str]:
    """Return the lines that arrived."""
    lines: list[str] = []
    while True:
        try:
            lines += heard.recv(4096).decode().split("\n")
        except BlockingIOError:
            return lines


def systemd(timers: Timers, address: str, progress: dict[str, Any], **more: str) -> Systemd:
    """Return what the process with the id 7 reports with."""
    loop = cast("asyncio.AbstractEventLoop", timers)
    return Systemd({"NOTIFY_SOCKET": address, **more}, 7, loop, lambda: progress)


def test_a_recovery_asks_for_more_time(heard: socket.socket) -> None:
    """Each second of a recovery extends the deadline of the start; a name in the status cannot add a line."""
    timers, progress = Timers(), dict[str, Any](PROGRESS)
    manager = systemd(timers, heard.getsockname(), progress)
    manager.start()
    status = "STATUS=Recovering vhost a\\nREADY=1 (1 of 2): 40 %, 12 s left"
    assert told(heard) == [f"EXTEND_TIMEOUT_USEC={EXTENSION_S}000000", status]
    progress.clear()
    assert timers.ring()
    assert told(heard) == []
    manager.ready("Ready at amqp://here")
    assert told(heard) == ["READY=1", "STATUS=Ready at amqp://here"]
    assert timers.ring()
    assert not timers.ring(), "a broker without a watchdog wakes nobody"
    assert timers.waits_s == [TICK_S, TICK_S]


def test_the_watchdog_is_fed_by_the_loop(heard: socket.socket) -> None:
    """The loop reports at half of the watchdog's interval, to the end."""
    timers = Timers()
    manager = systemd(timers, heard.getsockname(), {}, WATCHDOG_USEC="3000000", WATCHDOG_PID="7")
    manager.start()
    manager.ready("here")
    manager.stopping()
    manager.stopping()
    manager.ready("a reload that ended late")
    assert timers.ring()
    assert told(heard) == ["WATCHDOG=1", "READY=1", "STATUS=here", "STOPPING=1", "STATUS=Stopping", "WATCHDOG=1"]
    assert timers.waits_s == [TICK_S, 1.5]
    manager.close()
    assert not timers.ring()


def test_the_watchdog_of_another_process(heard: socket.socket) -> None:
    """A watchdog that watches another process is not fed."""
    timers = Timers()
    systemd(timers, heard.getsockname(), {}, WATCHDOG_USEC="3000000", WATCHDOG_PID="8").start()
    assert told(heard) == []


def test_without_systemd_nothing_runs() -> None:
    """Without the variable no timer runs."""
    timers = Timers()
    manager = systemd(timers, "", dict(PROGRESS), WATCHDOG_USEC="3000000")
    manager.start()
    manager.ready("here")
    assert not timers.waits_s


def test_a_socket_without_a_name_in_the_file_system() -> None:
    """An address with @ is in the abstract namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("")  # the kernel chooses a name
        receiver.setblocking(False)
        name = cast("bytes", receiver.getsockname())[1:].decode()
        systemd(Timers(), f"@{name}", {}).ready("here")
        assert told(receiver) == ["READY=1", "STATUS=here"]


def test_a_manager_that_is_gone(tmp_path: Path) -> None:
    """A socket that no one reads is a warning, and the broker runs on."""
    with capture_logs() as events:
        systemd(Timers(), str(tmp_path / "none"), {}).ready("here")
    assert [(event["event"], event["reason"]) for event in events] == [
        ("systemd.not_told", "No such file or directory")
    ]
