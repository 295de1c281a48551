"""Peek: read the next messages of a queue without taking them; none counts as delivered.

Messages on disk are read without loading their slots, so that a peek into a long queue does not fill the memory.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from broker.slots.states import Tenure

if TYPE_CHECKING:
    from broker.core.queue.queue import Queue
    from broker.core.queue.stream import Stream
    from broker.slots.slot import Slot

__all__ = ["Peeked", "peek"]


@dataclass(frozen=True, slots=True)
class Peeked:
    """A message of a queue, which stays in it."""

    message_id: int
    priority_level: int
    exchange: str
    key: str
    header: bytes
    body: bytes
    redelivered: bool


class Content(Protocol):
    """The content of a message, in memory or read from disk."""

    header: bytes
    body: bytes


async def peek(queue: Queue, count: int) -> list[Peeked]:
    """Return up to `count` ready messages in the order of delivery: by priority, then by id.

    Raises: StoreFailed, CorruptRecord when messages on disk cannot be read.
    Cost: one read for each slot that is not in memory.
    """
    found: list[Peeked] = []
    for stream in reversed(queue.streams):
        for slot in list(stream.manager.slots.values()):
            if len(found) >= count:
                return found
            if slot.tenure is not Tenure.DELETED:
                found += await _peek_slot(stream, slot, count - len(found))
    return found


async def _peek_slot(stream: Stream, slot: Slot, limit: int) -> list[Peeked]:
    wanted = sorted(slot.ready_indexes())[:limit]
    if not wanted:
        return []
    redelivered = {index for index in wanted if slot.recovered or slot.counts.get(index, 0)}
    contents = slot.contents
    if contents is not None:
        held = [(index, contents[index]) for index in wanted]
        return [
            _peeked(stream, slot, index, message.envelope.exchange, message.envelope.key, message, redelivered)
            for index, message in held
            if message is not None
        ]
    store, segments = stream.store, tuple(slot.segments)
    for segment in segments:
        store.add_live(segment, 1)  # keep the files until they are read, even if the slot is deleted
    try:
        stored = await asyncio.to_thread(store.read_slot, stream.number, slot.first, slot.end, wanted, segments)
    finally:
        for segment in segments:
            store.drop_live(segment, 1)
    return [
        _peeked(stream, slot, index, message.exchange, message.key, message, redelivered)
        for index in wanted
        if (message := stored[index]) is not None
    ]


def _peeked(
    stream: Stream, slot: Slot, index: int, exchange: str, key: str, content: Content, redelivered: set[int]
) -> Peeked:
    return Peeked(slot.first + index, stream.level, exchange, key, content.header, content.body, index in redelivered)
