"""Delayed messages of a cluster: they wait in PostgreSQL, and the keeper of their queue releases them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from broker.core.delay.delayed import Delay
from broker.store.record import due_target

if TYPE_CHECKING:
    from broker.cluster.shared_queue import SharedHoldingQueue
    from broker.core.message.message import Message
    from broker.slots.slot import Slot

__all__ = ["SharedDelay"]


class SharedDelay(Delay):
    """Holds the delayed messages of one exchange on this node, and routes the ones that the keeper releases."""

    __slots__ = ()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        cast("SharedHoldingQueue", self.queue).release_by(self.send)

    def hold(self, message: Message, delay_ms: int, number: bytes = b"") -> None:
        """Keep a message for a while."""
        due = due_target(message.timestamp_ms + delay_ms)
        self._poster.post(message, (self.queue,), number=number + due)

    def gather(self, slots: Iterable[Slot]) -> None:
        """Do nothing: the database knows when messages are due."""
