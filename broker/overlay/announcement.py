"""The updates that a broker sends over one link: numbered, and repeated until they are acknowledged."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import islice
from typing import Final

from broker.overlay.packets import Conjunction, Space, Update

PART_PATTERNS: Final = 500
"""The most patterns in a part of an update: below 400 kB, as vhost, exchange and pattern have up to 255 bytes each."""

WINDOW_PARTS: Final = 32
"""The most parts in flight: 16,000 patterns per round trip."""

REPEAT_MS: Final = 1000
REPEAT_MAX_MS: Final = 30_000


class Announcement:
    """The changes not yet sent to a neighbour broker, and the updates in flight to it. Changes are merged while a
    window of updates is in flight: a pattern that is added and removed during that time is never sent. After a resync
    and on a new link, a full update is sent.

    Invariant: the neighbour's state, changed by the queued updates and then by the waiting changes, is the state that
        the broker announces.
    """

    def __init__(self) -> None:
        self.full = True
        self.leaves: set[str] = set()  # leaves with a changed virtual time
        self.spaces: set[Space] = set()  # spaces with changed interested leaves
        self.touched: set[Space] = set()
        self.durable = False
        self.unreachable = False
        self._patterns: dict[Conjunction, bool] = {}
        self._serial = 0
        self._queue: deque[Update] = deque()
        self._in_flight = 0  # the number of sent updates, at the front of the queue
        self._repeat_at_ms: int | None = None
        self._interval_ms = REPEAT_MS

    def note(self, conjunction: Conjunction, *, added: bool) -> None:
        """Record an added or removed pattern, unless a full update is due. Opposite waiting changes cancel out."""
        if not self.full and self._patterns.pop(conjunction, added) == added:
            self._patterns[conjunction] = added

    def mark(
        self,
        leaves: Collection[str],
        spaces: Collection[Space],
        touched: Collection[Space],
        *,
        durable: bool = False,
        unreachable: bool = False,
    ) -> None:
        """Record changes: of leaves' virtual times, of spaces, and of the durable and unreachable leaves."""
        self.leaves.update(leaves)
        self.spaces.update(spaces)
        self.touched.update(touched)
        self.durable |= durable
        self.unreachable |= unreachable

    @property
    def ready(self) -> bool:
        """Whether changes are waiting and the window has room."""
        return self._waiting and len(self._queue) < WINDOW_PARTS

    @property
    def announced(self) -> int:
        """The serial of the last update, or 0 while a change is waiting or an update has not been sent."""
        return 0 if self._waiting or self._in_flight < len(self._queue) else self._serial

    @property
    def _waiting(self) -> bool:
        return bool(self.full or self._patterns or self.leaves or self.spaces or self.durable or self.unreachable)

    def enqueue(self, everything: Iterable[Conjunction], update: Update) -> None:
        """Queue the waiting changes of patterns in parts, or all patterns (`everything`) if a full update is due.

        `update` contains the other fields of the last part. Afterwards no change is waiting.
        """
        changes = [(conjunction, True) for conjunction in everything] if self.full else list(self._patterns.items())
        parts = [changes[at : at + PART_PATTERNS] for at in range(0, len(changes) or 1, PART_PATTERNS)]
        for index, part in enumerate(parts):
            self._serial += 1
            last = index == len(parts) - 1
            self._queue.append(
                replace(
                    update if last else Update(0, full=False, last=False),
                    serial=self._serial,
                    full=self.full and index == 0,
                    last=last,
                    added=tuple(conjunction for conjunction, added in part if added),
                    removed=tuple(conjunction for conjunction, added in part if not added),
                )
            )
        self._patterns = {}
        self.full = False
        self.leaves = set()
        self.spaces = set()
        self.touched = set()
        self.durable = False
        self.unreachable = False

    def take(self, now_ms: int) -> list[Update]:
        """Return the updates to send: new ones for which the window has room, and those that must be repeated now."""
        updates: list[Update] = []
        if self._repeat_at_ms is not None and now_ms >= self._repeat_at_ms:
            updates += islice(self._queue, self._in_flight)
            self._interval_ms = min(2 * self._interval_ms, REPEAT_MAX_MS)
            self._repeat_at_ms = None
        more = list(islice(self._queue, self._in_flight, WINDOW_PARTS))
        self._in_flight += len(more)
        updates += more
        if self._in_flight == 0:
            self._repeat_at_ms = None
        elif self._repeat_at_ms is None:
            self._repeat_at_ms = now_ms + self._interval_ms
        return updates

    def acknowledge(self, serial: int) -> None:
        """Remove the updates up to a serial, which have arrived, from the queue."""
        while self._in_flight and self._queue[0].serial <= serial:
            self._queue.popleft()
            self._in_flight -= 1
            self._interval_ms = REPEAT_MS
            self._repeat_at_ms = None

    def resync(self) -> None:
        """Replace the queued updates with a full one; if one is already queued, repeat those in flight at once."""
        if any(update.full for update in self._queue):
            self._repeat_at_ms = 0
        elif not self.full:
            self.full = True
            self._patterns = {}
            self._queue.clear()
            self._in_flight = 0
