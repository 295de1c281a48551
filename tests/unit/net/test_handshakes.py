"""Handshakes in progress: each client has its own time, though one timer serves all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from broker.core.auth.peer import Peer
from broker.net.handshakes import Handshakes

TIMEOUT_S = 10.0


class Timer:
    """A call at a time of the loop."""

    def __init__(self, due_s: float, call: Callable[[], None]) -> None:
        self.due_s = due_s
        self.call = call
        self.pending = True

    def cancel(self) -> None:
        """Do not call."""
        self.pending = False


class Loop:
    """A loop whose time a test moves on."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        """Return the time."""
        return self.now_s

    def call_at(self, due_s: float, call: Callable[[], None]) -> Timer:
        """Keep a call."""
        self.timers.append(Timer(due_s, call))
        return self.timers[-1]

    def go_on(self, to_s: float) -> None:
        """Let time pass, and call what is due meanwhile."""
        self.now_s = to_s
        for timer in self.timers:
            if timer.pending and timer.due_s <= to_s:
                timer.pending = False
                timer.call()


class Client:
    """A transport in its handshake, which notes that it was dropped."""

    def __init__(self, dropped: list[str], name: str, address: str = "192.0.2.1") -> None:
        self._dropped, self._name = dropped, name
        self.peer = Peer(address)

    def handshake_late(self, timeout_s: float) -> None:
        """Note it."""
        assert timeout_s == TIMEOUT_S
        self._dropped.append(self._name)

    def abort(self) -> None:
        """Note it."""
        self._dropped.append(self._name)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    """Provide the running loop."""
    made = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made)
    return made


def test_every_late_client_is_dropped_and_no_other(loop: Loop) -> None:
    """A client that began while others were waiting is dropped after them, without a further one that begins."""
    handshakes = Handshakes(TIMEOUT_S)
    dropped: list[str] = []
    first, done, second = (Client(dropped, name) for name in ("first", "done", "second"))
    handshakes.begin(first)
    handshakes.begin(done)
    loop.go_on(5.0)
    handshakes.begin(second)
    handshakes.end(done)
    loop.go_on(9.0)
    assert dropped == []
    loop.go_on(10.0)
    assert dropped == ["first"]
    loop.go_on(14.0)
    assert dropped == ["first"]
    loop.go_on(15.0)
    assert dropped == ["first", "second"]
    assert len(loop.timers) == 2


def test_a_stopped_broker_drops_no_one(loop: Loop) -> None:
    """After the last connection was aborted no timer is left that keeps the transports."""
    handshakes = Handshakes(TIMEOUT_S)
    dropped: list[str] = []
    handshakes.begin(Client(dropped, "left"))
    handshakes.stop()
    assert not any(timer.pending for timer in loop.timers)
    loop.go_on(20.0)
    assert dropped == []


def test_the_busiest_network_makes_room_and_is_late_no_more(loop: Loop) -> None:
    """A client that was dropped for another one is not dropped again when its time is over."""
    handshakes = Handshakes(TIMEOUT_S)
    dropped: list[str] = []
    for name, address in (("kept", "192.0.2.1"), ("first", "2001:db8::1"), ("second", "2001:db8::2")):
        handshakes.begin(Client(dropped, name, address))
    client = handshakes.make_room()
    assert client is not None
    client.abort()
    loop.go_on(10.0)
    assert dropped == ["first", "kept", "second"]
    assert handshakes.make_room() is None
