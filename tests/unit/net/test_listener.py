"""The listener's own book-keeping: who is here, who has gone, and who is looked after when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.net.listener import STEPS, Listener
from broker.settings import Settings

TRANSPORTS = 2 * STEPS + 5


class Looked:
    """A connection that counts how often it is looked after."""

    def __init__(self) -> None:
        self.ticks = 0
        self.descriptor = 0

    def tick(self) -> None:
        """Count."""
        self.ticks += 1


@pytest.fixture
def listener() -> Listener:
    """Provide a listener that listens nowhere."""
    nothing: Any = SimpleNamespace()
    return Listener(Settings(), nothing, nothing, logins=nothing, permissions=nothing, usage=nothing, vhosts={})


def come(listener: Listener, count: int) -> list[Any]:
    """Make connections come and return them."""
    transports: list[Any] = [Looked() for _ in range(count)]
    assert all(listener._made(transport) for transport in transports)
    return transports


@pytest.mark.parametrize("count", [1, TRANSPORTS])
def test_every_connection_is_looked_after_once_in_a_second(listener: Listener, count: int) -> None:
    """However many there are, each step has its share of them."""
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
    """Not of those who came later."""
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
    """Beside those who had gone by then."""
    (first,) = come(listener, 1)
    listener.count_gone()
    listener._lost(first)
    (later,) = come(listener, 1)
    listener.count_more()
    listener._lost(later)
    assert listener.gone == 2
