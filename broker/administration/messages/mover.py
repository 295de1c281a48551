"""Carry out a move in batches: the loop turns between two batches, and the disk keeps up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.core.moving.moving import Move, MoveTally
    from broker.delivery.engine import Engine

__all__ = ["carry_out"]

STEP_MESSAGES: Final = 1000  # examined between two syncs
PENDING_BYTES: Final = (
    1 << 20
)  # of the log: with more, a move waits for the disk, as a publisher waits for its confirms


async def carry_out(engine: Engine, move: Move, told: Callable[[MoveTally], str]) -> str:
    """Run a move to its end and return why it ended early, an empty string if it did not. Its effects are on disk then.

    Shapes: `told` is called after each step, once it is on disk; it returns a reason to end the move there, or "".
    Raises: StoreFailed when the broker has failed, or the vhost gone offline; BrokerError when a cluster's database is
        away.
    """
    committer, log, tally = engine.committer, engine.store.log, move.tally
    messages = engine.messages(move.source)
    seen = 0
    while not (reason := told(tally)):
        while not move.done and tally.looked - seen < STEP_MESSAGES and log.pending_bytes < PENDING_BYTES:
            committer.check()  # an engine that has ended runs no turn that would renew the share
            await messages.move(move)
            engine.log_settled()  # schedule a turn: it writes, delivers, and renews the share
            await asyncio.sleep(0)
        seen = tally.looked
        await committer.drain()
        if move.done:
            break
    return reason
