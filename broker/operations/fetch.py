"""Messages of a queue are fetched, by and for an operator: settled, returned, or dropped from its head."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.administration.deciding import decided
from broker.core.moving.walk import Walk
from broker.delivery.queue_messages import load

if TYPE_CHECKING:
    from broker.core.message.message import Message
    from broker.core.queue.level import Level
    from broker.core.queue.queue import Queue
    from broker.delivery.engine import Engine
    from broker.slots.slot import Slot

__all__ = ["Fetched", "drop", "fetch", "requeue", "settle"]

AT_ONCE: Final = 500  # messages between two turns of the loop
AT_ONCE_BYTES: Final = 8 << 20


class Fetched(NamedTuple):
    """A message, unacked until it is settled or requeued."""

    level: Level
    slot: Slot
    place: int
    message: Message
    redelivered: bool


async def fetch(engine: Engine, queue: Queue, count: int, bytes_max: int, fetched: list[Fetched]) -> None:
    """Take up to `count` messages, or as many as make `bytes_max`, and add them to `fetched` one by one.

    An expired message stays, and expires in its place.
    Raises: what `load` raises.
    """
    walk = Walk(queue)
    left_bytes = bytes_max
    clock = engine.vhost.ports.clock
    while len(fetched) < count and left_bytes > 0 and (found := walk.find()) is not None:
        level, slot, indexes = found
        if slot.contents is None:
            await load(engine.reader, engine.committer, level, slot)
            continue
        for index in indexes:
            if len(fetched) == count or left_bytes <= 0:
                break
            walk.pass_by(slot, index)
            message: Message | None = slot.contents[index]
            if message is None or walk.expired(message, clock.now_ms):
                continue
            level.manager.pick(slot, [index])
            fetched.append(Fetched(level, slot, index, message, slot.redelivered(index)))
            left_bytes -= len(message.header) + len(message.body)
    if queue.timed and not queue.deleted:
        queue.look()  # the queue has another head now


def settle(engine: Engine, fetched: Iterable[Fetched]) -> None:
    """Settle messages that the operator received."""
    for (level, slot), indexes in _by_slot(fetched).items():
        level.settle(slot, indexes)
    engine.log_settled()


def requeue(engine: Engine, fetched: Iterable[Fetched]) -> None:
    """Put messages back in their places, redelivered."""
    for (level, slot), indexes in _by_slot(fetched).items():
        level.requeue(slot, indexes, failed=False)
    engine.log_settled()


def _by_slot(fetched: Iterable[Fetched]) -> dict[tuple[Level, Slot], list[int]]:
    groups: dict[tuple[Level, Slot], list[int]] = {}
    for one in fetched:
        groups.setdefault((one.level, one.slot), []).append(one.place)
    return groups


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
