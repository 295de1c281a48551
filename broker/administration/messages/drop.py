"""Drop: settle the first messages of a queue on an operator's order, without delivering them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.administration.deciding import decided
from broker.administration.messages.fetch import Fetched, fetch, requeue, settle

if TYPE_CHECKING:
    from broker.core.queue.queue import Queue
    from broker.delivery.engine import Engine

__all__ = ["drop"]

AT_ONCE: Final = 500  # messages between two turns of the loop
AT_ONCE_BYTES: Final = 8 << 20


async def drop(engine: Engine, queue: Queue, limit: int) -> int:
    """Drop up to `limit` ready messages from the head of a queue, and return how many.

    Consumers go on meanwhile; a message that has expired is left to expire. Raises: what `fetch` raises.
    """
    dropped = 0
    while dropped < limit:
        await decided(partial(queue.before, "get", None))
        fetched: list[Fetched] = []
        try:
            await fetch(engine, queue, min(limit - dropped, AT_ONCE), AT_ONCE_BYTES, fetched)
        except BaseException:
            requeue(engine, fetched)
            raise
        if not fetched:
            break
        settle(engine, fetched)
        dropped += len(fetched)
        await asyncio.sleep(0)
    return dropped
