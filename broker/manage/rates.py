"""Rates of counters, from the readings of those who ask: nothing is measured while nobody does."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from operator import gt
from typing import Final

__all__ = ["AskedRates"]

FORGET_S: Final = 600.0  # a counter that nobody has read for this long
COUNTERS_MAX: Final = 100_000  # objects whose last readings are kept
SWEPT_AT_ONCE: Final = 500


class Reading:
    """The last two readings of an object's counters that are an interval apart, and when they last changed.

    Units: moments are in seconds; ``changed_s`` is one of the wall clock.
    """

    __slots__ = ("at_s", "before", "before_s", "changed_s", "counts")

    def __init__(self, at_s: float, counts: Sequence[int], changed_s: float) -> None:
        self.at_s = self.before_s = at_s
        self.counts = self.before = counts
        self.changed_s = changed_s


class AskedRates:
    """Remembers readings by key.

    The rate of a counter is measured since a reading that is one to two intervals old while somebody asks that often,
    and else since the last one. The first who asks gets none.
    Invariant: at most COUNTERS_MAX readings are kept, each for FORGET_S after it was asked for last.
    """

    def __init__(
        self, interval_s: float, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self.interval_s = interval_s
        self._clock = clock
        self._wall = wall
        self._readings: dict[Hashable, Reading] = {}
        self._sweep: list[Hashable] = []

    def __len__(self) -> int:
        """Return how many objects are remembered."""
        return len(self._readings)

    def of(self, key: Hashable, counts: Sequence[int], counters: int) -> list[float] | None:
        """Return the rates of the numbers of an object, which read `counts` now; None when all are 0.

        The first `counters` of them never fall, unless another object has the key now; the others may.
        Units: per second.
        """
        now_s = self._clock()
        known = self._readings.get(key)
        if known is None or now_s - known.at_s > FORGET_S or _fell(known.counts, counts, counters):
            self.sweep(2)
            if len(self._readings) < COUNTERS_MAX:
                self._readings[key] = Reading(now_s, counts, self._wall())
            return None
        if counts != known.counts:
            known.changed_s = self._wall()
        if now_s - known.at_s >= self.interval_s:
            known.before, known.before_s = known.counts, known.at_s
            known.counts, known.at_s = counts, now_s
        before = known.before
        if before == counts or now_s <= known.before_s:
            return None
        window_s = now_s - known.before_s
        return [round((count - earlier) / window_s, 2) for count, earlier in zip(counts, before, strict=True)]

    def changed_s(self, key: Hashable) -> float | None:
        """Return when an object's counters changed last, as far as anybody saw; None when nobody looked."""
        known = self._readings.get(key)
        return None if known is None else known.changed_s

    def sweep(self, most: int = SWEPT_AT_ONCE) -> None:
        """Look at some of the readings, and forget those that nobody has asked for lately. Cost: O(most)."""
        now_s = self._clock()
        if not self._sweep:
            self._sweep = list(self._readings)
        for key in self._sweep[-most:]:
            known = self._readings.get(key)
            if known is not None and now_s - known.at_s > FORGET_S:
                del self._readings[key]
        del self._sweep[-most:]


def _fell(before: Sequence[int], counts: Sequence[int], counters: int) -> bool:
    return any(map(gt, before[:counters], counts))
