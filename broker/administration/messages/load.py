"""Waits for a slot that lies on disk, as long as its vhost has an engine that reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.core.queue.stream import Stream
    from broker.delivery.engine import Engine
    from broker.slots.slot import Slot

__all__ = ["load"]

LOOK_S: Final = 1.0


def _nothing() -> None:
    """Follow a read when nobody else does."""


async def load(engine: Engine, stream: Stream, slot: Slot, then: Callable[[], object] = _nothing) -> None:
    """Return once the slot's messages were in memory, or the slot is gone; `then` is called before they can go again.

    Raises: what `then` raises; StoreFailed when the broker has failed, or the vhost gone offline; ValueError when the
        vhost was deleted.
    """
    read: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    engine.reader.read(stream, slot, partial(_go_on, then, read))
    while not read.done():  # what cannot be read ends the vhost or the broker, and nobody hears of the read then
        await asyncio.wait([read], timeout=LOOK_S)
        engine.committer.check()
    await read


def _go_on(then: Callable[[], object], read: asyncio.Future[None]) -> None:
    """Call `then`, unless nobody waits for the read any more."""
    if not read.done():
        try:
            then()
        except Exception as error:  # noqa: BLE001 - told to whoever waits
            read.set_exception(error)
        else:
            read.set_result(None)
