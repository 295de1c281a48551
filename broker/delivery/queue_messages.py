"""The ready messages of a queue for operators: peek at them, and move them to other queues.

Peeking reads messages from disk without loading their slots, so that inspecting a long queue does not fill the memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.core.message.message import Message
from broker.core.queue.level import Level
from broker.core.queue.queue import Queue
from broker.delivery.message_loader import MessageLoader
from broker.slots.slot import Slot
from broker.slots.states import Tenure

if TYPE_CHECKING:
    from broker.core.moving.move import Move
    from broker.core.vhost import Vhost
    from broker.delivery.committer import EngineCommitter
    from broker.delivery.reader import SlotReader

CHECK_S: Final = 1.0  # between two checks whether the broker has failed


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

    @classmethod
    def of(cls, message: Message, message_id: int, priority_level: int, *, redelivered: bool) -> Peeked:
        envelope, header, body = message.envelope, message.header, message.body
        return cls(message_id, priority_level, envelope.exchange, envelope.key, header, body, redelivered)


class LocalMessages:
    """The ready messages of one queue, as an operator sees them."""

    def __init__(self, vhost: Vhost, queue: Queue, reader: SlotReader, committer: EngineCommitter) -> None:
        self.vhost = vhost
        self.queue = queue
        self._reader = reader
        self._committer = committer

    async def peek(self, count: int) -> list[Peeked]:
        """Return up to `count` ready messages, the highest priority first, then by id; they do not count as delivered.

        Raises: StoreFailed, CorruptRecord; in a cluster, BrokerError.
        Cost: one read for each slot that is not in memory.
        """
        found: list[Peeked] = []
        for level in reversed(self.queue.levels):
            found += await self.peek_level(level, count - len(found))
        return found

    async def peek_level(self, level: Level, limit: int) -> list[Peeked]:
        """Return the first ready messages of one level, up to `limit`. Raises: StoreFailed, CorruptRecord."""
        found: list[Peeked] = []
        for slot in list(level.manager.slots.values()):
            if len(found) >= limit:
                break
            if slot.tenure is not Tenure.DELETED:
                found += await _peek_slot(level, slot, limit - len(found))
        return found

    async def move(self, move: Move) -> None:
        """Perform the next batch of a move, once its slot is in memory. Each message is always either in its old queue
        or in its new ones. Raises: what `load` raises; in a cluster, BrokerError.
        """
        missing = move.batch()
        if missing is not None:
            self._reader.read_ahead(*missing)
            await load(self._reader, self._committer, *missing, then=move.batch)


async def _peek_slot(level: Level, slot: Slot, limit: int) -> list[Peeked]:
    wanted = sorted(slot.ready_indexes())[:limit]
    if not wanted:
        return []
    places = [(index, level.message_id(slot, index), slot.redelivered(index)) for index in wanted]
    messages = await messages_at(level, slot, wanted)
    return [
        Peeked.of(message, message_id, level.priority, redelivered=redelivered)
        for index, message_id, redelivered in places
        if (message := messages[index]) is not None
    ]


async def messages_at(level: Level, slot: Slot, wanted: Sequence[int]) -> Sequence[Message | None]:
    """Return the messages of a slot by index, at least the wanted ones, without loading the slot.

    Raises: StoreFailed, CorruptRecord.
    """
    if slot.contents is not None:
        return slot.contents
    store, segments = level.store, tuple(slot.segments)
    for segment in segments:
        store.add_live(segment, 1)  # keep the files until they are read, even if the slot is deleted
    try:
        read = store.slots.read
        return await asyncio.to_thread(read, level.number, slot.first, slot.end, wanted, segments, MessageLoader())
    finally:
        store.unpin(segments)


async def load(
    reader: SlotReader,
    committer: EngineCommitter,
    level: Level,
    slot: Slot,
    then: Callable[[], object] = lambda: None,
) -> None:
    """Wait until the slot's messages are in memory or the slot is deleted, and call `then` before it can be paged out
    again.

    Raises: what `then` raises; the error that has ended the broker, or taken the vhost offline; ValueError when the
        vhost was deleted.
    """
    read: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    reader.read(level, slot, partial(_call_and_resolve, then, read))
    while not read.done():  # a failed read ends the vhost or the broker, and never calls back
        await asyncio.wait([read], timeout=CHECK_S)
        committer.check()
    await read


def _call_and_resolve(then: Callable[[], object], read: asyncio.Future[None]) -> None:
    """Call `then` and resolve the future with its outcome, unless the waiting caller was cancelled."""
    if not read.done():
        try:
            then()
        except Exception as error:  # noqa: BLE001 - the caller raises it
            read.set_exception(error)
        else:
            read.set_result(None)
