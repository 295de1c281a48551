"""The updates that are sent over one link: numbered, and repeated until they are acknowledged."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import islice
from typing import Final

from broker.overlay.packets import Conjunction, Space, Update

PART_PATTERNS: Final = 500
"""Patterns in one part of an update. Each has at most 255 bytes, so a part stays below 150 kB and is applied fast."""

WINDOW_PARTS: Final = 32
"""Parts that are sent and not acknowledged: 16,000 patterns per round trip."""

REPEAT_MS: Final = 1000
REPEAT_MAX_MS: Final = 30_000


class Announcement:
    """The changes not yet sent to a neighbour broker, and the updates to it in flight. Changes are merged while a
    window of updates is under way: a pattern added and removed meanwhile is never sent. After a resync or on a new link
    everything is sent.

    Invariant: the neighbour's state, changed by the queued updates and then by the waiting changes, is the state that
        the broker announces.
    """

    def __init__(self) -> None:
        self.full = True
        self.leaves: set[str] = set()  # whose virtual time has changed
        self.spaces: set[Space] = set()  # whose interested leaves have changed
        self.touched: set[Space] = set()
        self.durable = False
        self.unreachable = False
        self._patterns: dict[Conjunction, bool] = {}
        self._serial = 0
        self._queue: deque[Update] = deque()
        self._in_flight = 0  # how many updates at the front of the queue were sent
        self._repeat_at_ms: int | None = None
        self._interval_ms = REPEAT_MS

    def note(self, conjunction: Conjunction, *, came: bool) -> None:
        """Record that a pattern was added (`came`) or removed. The opposite change that was not sent yet cancels it."""
        if not self.full and self._patterns.pop(conjunction, came) == came:
            self._patterns[conjunction] = came

    def mark(
        self,
        leaves: Collection[str],
        spaces: Collection[Space],
        touched: Collection[Space],
        *,
        durable: bool = False,
        unreachable: bool = False,
    ) -> None:
        """Record leaves with a new virtual time, spaces with other interested leaves, and touched spaces."""
        self.leaves.update(leaves)
        self.spaces.update(spaces)
        self.touched.update(touched)
        self.durable |= durable
        self.unreachable |= unreachable

    @property
    def ready(self) -> bool:
        """Whether there are changes and room to send them."""
        return self._waiting and len(self._queue) < WINDOW_PARTS

    @property
    def announced(self) -> int:
        """The serial of the last update, 0 while some change was not sent yet."""
        return 0 if self._waiting or self._in_flight < len(self._queue) else self._serial

    @property
    def _waiting(self) -> bool:
        return bool(self.full or self._patterns or self.leaves or self.spaces or self.durable or self.unreachable)

    def enqueue(self, everything: Iterable[Conjunction], update: Update) -> None:
        """Queue the waiting changes of patterns in parts, or all patterns (`everything`) if a full update is due.

        `update` has what the last part contains besides patterns. Afterwards no change waits.
        """
        changes = [(conjunction, True) for conjunction in everything] if self.full else list(self._patterns.items())
        parts = [changes[at : at + PART_PATTERNS] for at in range(0, len(changes) or 1, PART_PATTERNS)]
        for place, part in enumerate(parts):
            self._serial += 1
            last = place == len(parts) - 1
            self._queue.append(
                replace(
                    update if last else Update(0, full=False, last=False),
                    serial=self._serial,
                    full=self.full and place == 0,
                    last=last,
                    added=tuple(conjunction for conjunction, came in part if came),
                    removed=tuple(conjunction for conjunction, came in part if not came),
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
        """Return the updates to send: new ones that the window has room for, and those that are due to be repeated."""
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
        """Remove the updates up to a serial from the queue, because they have arrived."""
        while self._in_flight and self._queue[0].serial <= serial:
            self._queue.popleft()
            self._in_flight -= 1
            self._interval_ms = REPEAT_MS
            self._repeat_at_ms = None

    def resync(self) -> None:
        """Send everything; if that is already under way, repeat it at once."""
        if any(update.full for update in self._queue):
            self._repeat_at_ms = 0
        elif not self.full:
            self.full = True
            self._patterns = {}
            self._queue.clear()
            self._in_flight = 0
