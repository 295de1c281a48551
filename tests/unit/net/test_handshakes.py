"""Handshakes in progress: each client has its own time, though one timer serves all."""

from __future__ import annotations

import asyncio

from broker.net.handshakes import Handshakes

TIMEOUT_S = 0.05
LIMIT_S = 20.0


class Client:
    """A transport in its handshake, which notes that it was dropped."""

    def __init__(self, dropped: asyncio.Queue[str], name: str) -> None:
        self._dropped, self._name = dropped, name

    def handshake_late(self, timeout_s: float) -> None:
        """Note it."""
        assert timeout_s == TIMEOUT_S
        self._dropped.put_nowait(self._name)


async def test_every_late_client_is_dropped_and_no_other() -> None:
    """A client that began while others were waiting is dropped after them, without a further one that begins."""
    handshakes = Handshakes(TIMEOUT_S)
    dropped: asyncio.Queue[str] = asyncio.Queue()
    first, done, second = (Client(dropped, name) for name in ("first", "done", "second"))
    handshakes.begin(first)
    handshakes.begin(done)
    await asyncio.sleep(TIMEOUT_S / 2)
    handshakes.begin(second)
    handshakes.end(done)
    async with asyncio.timeout(LIMIT_S):
        assert [await dropped.get(), await dropped.get()] == ["first", "second"]
    assert dropped.empty()


async def test_a_stopped_broker_drops_no_one() -> None:
    """After the last connection was aborted no timer is left that keeps the transports."""
    handshakes = Handshakes(TIMEOUT_S)
    dropped: asyncio.Queue[str] = asyncio.Queue()
    handshakes.begin(Client(dropped, "left"))
    handshakes.stop()
    await asyncio.sleep(2 * TIMEOUT_S)
    assert dropped.empty()
