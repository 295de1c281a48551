"""Carries out a move: batch after batch, with everybody else's turn in between, and the disk never far behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.core.moving import Move, Tally
    from broker.delivery.engine import Engine

__all__ = ["carry_out"]

STEP_MESSAGES: Final = 1000  # looked at between two looks at the disk
LOOK_S: Final = 1.0
PENDING_BYTES: Final = 1 << 20  # of the log: a move waits for the disk as a publisher does for its confirms


async def carry_out(engine: Engine, move: Move, told: Callable[[Tally], str]) -> str:
    """Run a move to its end; return why it ended early, nothing when it did not. What it did is on disk then.

    Shapes: `told` hears of each step, once it is on disk, and returns why the move is to end there, if it is.
    Raises: StoreFailed when the broker has failed, or the vhost gone offline.
    """
    committer, log, tally = engine.committer, engine.store.log, move.tally
    seen = 0
    while not (reason := told(tally)):
        while not move.done and tally.looked - seen < STEP_MESSAGES and log.pending_bytes < PENDING_BYTES:
            await _batch(engine, move)
            engine.log_settled()  # and has a turn run: it writes, delivers what was moved, and renews the turn's share
            await asyncio.sleep(0)
        seen = tally.looked
        await committer.drain()
        if move.done:
            break
    return reason


async def _batch(engine: Engine, move: Move) -> None:
    """Move a batch, of a slot that was read from disk where it has to be."""
    missing = move.batch()
    if missing is not None:
        read: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        engine.reader.read(*missing, partial(_go_on, move, read))
        engine.reader.read_ahead(*missing)
        while not read.done():  # what cannot be read ends the vhost or the broker, and nobody hears of the read then
            await asyncio.wait([read], timeout=LOOK_S)
            engine.committer.check()
        await read


def _go_on(move: Move, read: asyncio.Future[None]) -> None:
    """Move what was read before the pager can take it away again, unless nobody waits for it any more."""
    if not read.done():
        try:
            move.batch()
        except Exception as error:  # noqa: BLE001 - told to whoever asked for the move
            read.set_exception(error)
        else:
            read.set_result(None)
