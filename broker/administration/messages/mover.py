"""Carries out a move: batch after batch, with everybody else's turn in between, and the disk never far behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.administration.messages.load import load

if TYPE_CHECKING:
    from broker.core.moving.moving import Move, MoveTally
    from broker.delivery.engine import Engine

__all__ = ["carry_out"]

STEP_MESSAGES: Final = 1000  # looked at between two looks at the disk
PENDING_BYTES: Final = 1 << 20  # of the log: a move waits for the disk as a publisher does for its confirms


async def carry_out(engine: Engine, move: Move, told: Callable[[MoveTally], str]) -> str:
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
    engine.committer.check()  # no turn of an engine that has ended renews the share that a batch needs
    missing = move.batch()
    if missing is not None:
        engine.reader.read_ahead(*missing)
        await load(engine, *missing, then=move.batch)
