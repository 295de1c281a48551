"""The listener's periodic check of its connections."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.net.listener import STEPS, Listener
from broker.settings import Settings

pytestmark = pytest.mark.interpreted("nothing takes the place of the turn and the connections")

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
