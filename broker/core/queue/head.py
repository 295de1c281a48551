"""The head of a queue: where its first ready message is, and the read that brings it back from disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.core.queue.ports import StreamPorts
    from broker.core.queue.stream import Stream
    from broker.slots.slot import Slot

__all__ = ["QueueHead"]


class QueueHead:
    """Finds the first ready message of a queue; one slot is read at a time."""

    __slots__ = ("_ports", "_reading", "_streams", "_was_read")

    def __init__(self, streams: Sequence[Stream], ports: StreamPorts[Stream], was_read: Callable[[], None]) -> None:
        """`was_read` hears that a slot is back in memory."""
        self._streams = streams
        self._ports = ports
        self._was_read = was_read
        self._reading = False

    def find(self) -> tuple[Stream, Slot | None]:
        """Return the highest level that has a ready message, and the slot of its lowest id; None without a message."""
        for stream in reversed(self._streams):
            slot = stream.manager.front()
            if slot is not None:
                return stream, slot
        return self._streams[0], None

    def waits_for(self, stream: Stream, slot: Slot) -> bool:
        """Return whether a slot lies on disk; if it does, read it."""
        if slot.contents is None and not self._reading:
            self._reading = True
            self._ports.read(stream, slot, self._read)
        return slot.contents is None

    def _read(self) -> None:
        self._reading = False
        self._was_read()
