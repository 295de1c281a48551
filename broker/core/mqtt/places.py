"""The positions of messages in an internal queue, for an index in memory that is built from the queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from broker.core.message.message import Message
from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost
from broker.slots.slot import Slot
from broker.slots.states import Tenure


class Place:
    """The position of one message in an internal queue."""

    __slots__ = ("message_id", "slot")

    def __init__(self, slot: Slot, message_id: int) -> None:
        self.slot = slot
        self.message_id = message_id

    @property
    def index(self) -> int:
        return self.message_id - self.slot.first

    @property
    def is_gone(self) -> bool:
        """Whether the message is no longer in the queue."""
        return self.slot.tenure is Tenure.DELETED or self.index in self.slot.acks


def read_all(
    vhost: Vhost, queue: Queue | None, take: Callable[[Message, Slot, int], None], done: Callable[[], None]
) -> None:
    """Call `take` with each ready message of a queue, its slot and its index, then `done`. Slots on disk are read."""
    slots = () if queue is None else tuple(queue.level.manager.slots.values())
    _read(vhost, queue, deque(slots), take, done)


def _read(
    vhost: Vhost,
    queue: Queue | None,
    slots: deque[Slot],
    take: Callable[[Message, Slot, int], None],
    done: Callable[[], None],
) -> None:
    while slots and queue is not None and not queue.deleted:
        slot = slots[0]
        if slot.contents is None and slot.tenure is not Tenure.DELETED:
            vhost.ports.read(queue.level, slot, partial(_read, vhost, queue, slots, take, done))
            return
        slots.popleft()
        contents = slot.contents
        if contents is None or slot.tenure is Tenure.DELETED:
            continue
        for index in tuple(slot.ready_indexes()):
            message: Message | None = contents[index]
            if message is not None:
                take(message, slot, index)
    done()
