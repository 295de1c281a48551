"""The listener's accounts: present and closed connections, and their periodic check."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.net.listener import STEPS, Listener
from broker.settings import Settings

TRANSPORTS = 2 * STEPS + 5


class Looked:
    """A connection that counts its periodic checks."""

    def __init__(self) -> None:
        self.ticks = 0
        self.descriptor = 0
        self.is_open = False
        self.connection = SimpleNamespace(received=0, sent=0)

    def tick(self, _slow_s: int) -> None:
        """Count the check."""
        self.ticks += 1


@pytest.fixture
def listener() -> Listener:
    """Provide a listener without an address."""
    nothing: Any = SimpleNamespace()
    return Listener(Settings(), nothing, nothing, logins=nothing, permissions=nothing, usage=nothing, vhosts={})


def come(listener: Listener, count: int) -> list[Any]:
    """Open connections and return them."""
    transports: list[Any] = [Looked() for _ in range(count)]
    assert all(listener._made(transport) for transport in transports)
    return transports


@pytest.mark.parametrize("count", [1, TRANSPORTS])
def test_every_connection_is_looked_after_once_in_a_second(listener: Listener, count: int) -> None:
    """Each step checks its share of the connections, however many there are."""
    transports = come(listener, count)
    most = 0
    for step in range(2 * STEPS):
        before = sum(transport.ticks for transport in transports)
        listener.step()
        most = max(most, sum(transport.ticks for transport in transports) - before)
        if step == STEPS - 1:
            assert [transport.ticks for transport in transports] == [1] * count
    assert [transport.ticks for transport in transports] == [2] * count
    assert most == -(-count // STEPS)


def test_who_has_gone_is_counted_of_those_who_were_here(listener: Listener) -> None:
    """Connections that were opened after the snapshot are not counted."""
    first, second = come(listener, 2)
    listener.count_gone()
    (later,) = come(listener, 1)
    listener._lost(later)
    assert listener.gone == 0
    listener._lost(first)
    listener._lost(first)
    assert listener.gone == 1
    listener.count_gone()
    assert listener.gone == 0
    assert list(listener.transports) == [second]


def test_those_who_came_later_are_counted_once_that_was_asked_for(listener: Listener) -> None:
    """Connections opened since are counted after count_more(), beside those closed before."""
    (first,) = come(listener, 1)
    listener.count_gone()
    listener._lost(first)
    (later,) = come(listener, 1)
    listener.count_more()
    listener._lost(later)
    assert listener.gone == 2
