"""The bytes of a queue's messages, counted slot by slot on request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from broker.core.message.message import OVERHEAD_BYTES, Message
from broker.core.queue.queue import Queue
from broker.slots.slot import Slot

__all__ = ["QueueBytes"]


@dataclass(slots=True)
class QueueBytes:
    """The bodies of a queue's messages in bytes, as RabbitMQ counts them: without properties.

    Exact for slots in memory. A slot on disk counts by the mean of its bodies at the time it was paged out. A slot that
    a restart found, and that was not read since, counts by the memory of its messages; a message that many queues have
    counts less there.
    Shapes: ``messages`` are those of the slots that were counted, ``persistent_messages`` and ``resident_messages``
        those of them that are in a log and in memory, ``resident`` the bytes of the latter.
    """

    ready: int = 0
    unacked: int = 0
    persistent: int = 0
    resident: int = 0
    messages: int = 0
    persistent_messages: int = 0
    resident_messages: int = 0

    def count(self, queue: Queue) -> Iterator[int]:
        """Count every slot, and yield after each how many messages it has. Cost: O(messages in memory) + O(slots)."""
        for level in queue.all_levels:
            for slot in list(level.manager.slots.values()):
                self._count(slot, durable=queue.durable)
                yield slot.length

    def _count(self, slot: Slot, *, durable: bool) -> None:
        unsettled = slot.unsettled
        if not unsettled:
            return
        contents: Sequence[Message | None] | None = slot.contents
        if contents is None:
            whole = slot.body_bytes if slot.body_bytes >= 0 else max(slot.bytes - OVERHEAD_BYTES * slot.length, 0)
            total = whole * unsettled // slot.length
            ready = total * slot.ready // unsettled
            lasting = max(unsettled - (slot.volatile.count() if slot.volatile is not None else 0), 0)
            persistent = total * lasting // unsettled
        else:
            total = sum([len(message.body) for message in contents if message is not None])
            handed_out = [contents[index] for index in slot.unacked()] if slot.ready < unsettled else []
            ready = total - sum([len(message.body) for message in handed_out if message is not None])
            persistent, lasting = total, unsettled
            if slot.mixed:
                logged = [len(message.body) for message in contents if message is not None and message.logged]
                persistent, lasting = sum(logged), len(logged)
            self.resident += total
            self.resident_messages += unsettled
        self.messages += unsettled
        self.ready += ready
        self.unacked += total - ready
        if durable:
            self.persistent += persistent
            self.persistent_messages += lasting
