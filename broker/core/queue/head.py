"""The head of a queue: its first ready message, the read that brings it back from disk, and what leaves there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from broker.core.queue.expiry import expired_first
from broker.core.queue.level import BATCH_MESSAGES

if TYPE_CHECKING:
    from broker.core.message.message import Message
    from broker.core.queue.level import Level
    from broker.core.queue.ports import LevelPorts
    from broker.slots.slot import Slot

__all__ = ["QueueHead"]


def _nobody() -> None:
    """Tell nobody that a slot was read."""


class QueueHead:
    """Finds the first ready message of a queue, and drops messages from there; one slot is read at a time."""

    __slots__ = ("_levels", "_ports", "_reading", "_was_read")

    def __init__(self, levels: Sequence[Level], ports: LevelPorts[Level], was_read: Callable[[], None]) -> None:
        """`was_read` hears that a slot is back in memory."""
        self._levels = levels
        self._ports = ports
        self._was_read = was_read
        self._reading = False

    def end(self, ended: Level) -> None:
        """Look at an ended level from now on, and tell nobody."""
        self._levels = (ended,)
        self._was_read = _nobody

    def find(self) -> tuple[Level, Slot | None]:
        """Return the highest level that has a ready message, and the slot of its lowest id; None without a message."""
        for level in reversed(self._levels):
            if level.returning:
                level.catch_up()
            slot = level.manager.front()
            if slot is not None:
                return level, slot
        return self._levels[0], None

    def waits_for(self, level: Level, slot: Slot) -> bool:
        """Return whether a slot lies on disk; if it does, read it."""
        if slot.contents is None and not self._reading:
            self._reading = True
            self._ports.read(level, slot, self._read)
        return slot.contents is None

    def drop(self, count: int, reason: str, *, read: bool) -> int:
        """Drop at most this many messages of the first slot, which must be there, and return how many.

        Return 0 while the slot lies on disk and is to be `read` first, as for dead letters.
        """
        level, slot = self.find()
        assert slot is not None
        if read and self.waits_for(level, slot):
            return 0
        indexes = level.manager.take(slot, count)
        self._ports.deadlines.spend(len(indexes))
        level.dead_letter(slot, indexes, reason)
        return len(indexes)

    def drop_expired(self, expires_ms: Callable[[Message], int | None], now_ms: int) -> int | None:
        """Drop what has expired up to the first message that has not, and return when that one expires.

        Return `now_ms` when the share of the turn is used up; None if the head does not expire, or is read first.
        """
        while True:
            level, slot = self.find()
            if slot is None or self.waits_for(level, slot):
                return None
            assert slot.contents is not None
            message: Message | None = slot.contents[slot.front(1)[0]]
            at_ms = None if message is None else expires_ms(message)
            if at_ms is None or at_ms > now_ms:
                return at_ms
            if self._ports.deadlines.left <= 0:
                return now_ms
            expired = expired_first(slot.contents, slot.front(BATCH_MESSAGES), expires_ms, now_ms)
            self._ports.deadlines.spend(expired)
            level.dead_letter(slot, level.manager.take(slot, expired), "expired")

    def _read(self) -> None:
        self._reading = False
        self._was_read()
