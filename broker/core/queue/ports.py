"""What a queue needs from the floors around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from broker.core.message.message import Message
from broker.core.queue.deadlines import Deadlines
from broker.slots.slot import Owner, Slot

if TYPE_CHECKING:
    from broker.core.queue.queue import Queue
    from broker.core.queue.stream import Stream
    from broker.core.session.basic import BasicSession
    from broker.store.store import VhostStore

__all__ = ["Clock", "QueuePorts", "QueueWorker"]


class Clock(Protocol):
    """The broker's clock, in milliseconds, as exact as a record's timestamp needs.

    The time of day of one of its moments is that moment less ``ahead_ms``.
    """

    now_ms: int
    ahead_ms: int


class QueueWorker(Protocol):
    """The slot delivery worker as a queue sees it."""

    owner: Owner

    def wake(self, queue: Queue) -> None:
        """Has the queue served in this loop turn."""

    def serve(self, queue: Queue) -> None:
        """Serve the queue at once."""

    def serve_first(self, queue: Queue) -> int:
        """Serve the queue before a method that would see its messages, and return how many were handed out."""


@dataclass(slots=True)
class QueuePorts:
    """What a queue needs from the floors around it; one object for all queues of a vhost.

    ``kept`` hears of each slot that begins to hold messages in memory, ``read`` brings a paged-out slot back and then
    calls, ``moments`` tells when the messages of a paged-out slot are due, ``fetch`` reads some messages of paged-out
    slots by their ids, the first ones first, ``measure`` finds the body sizes of a paged-out slot, ``settled`` collects
    the streams whose settlements are to be logged at the end of the loop turn. ``share`` has the queues of a channel
    served whose consumers share a prefetch in which there is room again. ``bury`` dead-letters a message, ``unused``
    hears of a queue that expired.
    """

    store: VhostStore
    assign: Callable[[Queue], QueueWorker]
    retire: Callable[[Queue], None]
    kept: Callable[[Stream, Slot], None]
    read: Callable[[Stream, Slot, Callable[[], None]], None]
    moments: Callable[[Stream, Slot, Callable[[Sequence[int]], None]], None]
    fetch: Callable[[Stream, Sequence[tuple[int, Slot]], Callable[[Mapping[int, Message | None]], None]], None]
    measure: Callable[[Stream, Slot], None]
    clock: Clock
    deadlines: Deadlines
    share: Callable[[BasicSession], None]
    bury: Callable[[Queue, Message, str], None]
    unused: Callable[[Queue], None]
    window_messages: int = 1000
    window_bytes: int = 1 << 20
    settled: list[Stream] = field(default_factory=list)

    def log_settlements(self) -> None:
        """Append the records of what was settled since the last call: one for each stream."""
        if self.settled:
            settled = self.settled[:]
            self.settled.clear()
            for stream in settled:
                stream.log_settlements()
