"""Load: wait until a slot is read from disk, while the engine of its vhost runs."""

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
    """Do nothing after a read."""


async def load(engine: Engine, stream: Stream, slot: Slot, then: Callable[[], object] = _nothing) -> None:
    """Return once the slot's messages are in memory or the slot is deleted; call `then` before it can be paged out
    again.

    Raises: what `then` raises; StoreFailed when the broker has failed, or the vhost gone offline; ValueError when the
        vhost was deleted.
    """
    read: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    engine.reader.read(stream, slot, partial(_go_on, then, read))
    while not read.done():  # a failed read ends the vhost or the broker, and never calls back
        await asyncio.wait([read], timeout=LOOK_S)
        engine.committer.check()
    await read


def _go_on(then: Callable[[], object], read: asyncio.Future[None]) -> None:
    """Call `then`, unless the caller was cancelled."""
    if not read.done():
        try:
            then()
        except Exception as error:  # noqa: BLE001 - the caller raises it
            read.set_exception(error)
        else:
            read.set_result(None)
