"""A histogram of durations with three significant digits, from a nanosecond to an hour, in bounded memory."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

HIGHEST_NS = 3_600 * 10**9

_EXACT_BITS = 11  # the fewest significant bits that preserve three decimal digits


class Histogram:
    """Count how often each duration occurred.

    Units: nanoseconds; a value below 0 counts as 0, a value above an hour as an hour.
    Cost: a few shifts and a look-up per record, and at most 34,000 distinct durations for any number of records.
    """

    def __init__(self) -> None:
        self._times: Counter[int] = Counter()

    def record(self, value_ns: int, count: int = 1) -> None:
        """Count a duration `count` times, rounded to the middle of the durations that share its first 11 bits."""
        if not 0 <= value_ns <= HIGHEST_NS:
            value_ns = 0 if value_ns < 0 else HIGHEST_NS
        if (shift := value_ns.bit_length() - _EXACT_BITS) > 0:
            value_ns = (value_ns >> shift << shift) + (1 << shift >> 1)
        self._times[value_ns] += count

    def merge(self, other: Histogram) -> None:
        self._times.update(other._times)

    def clear(self) -> None:
        self._times.clear()

    @property
    def count(self) -> int:
        return self._times.total()

    @property
    def mean_ns(self) -> float:
        """The mean; 0 without durations."""
        return sum(value * times for value, times in self._times.items()) / (self.count or 1)

    def percentile(self, percent: float) -> int:
        """Return the smallest duration that `percent` of all durations do not exceed; 0 without durations."""
        return self.percentiles((percent,))[0]

    def percentiles(self, percents: Sequence[float]) -> list[int]:
        """Return the `percentile` for each of these. Cost: one sort of the distinct durations for all of them."""
        values = sorted(self._times)
        if not values:
            return [0] * len(percents)
        reached = list(accumulate(self._times[value] for value in values))
        ranks = [max(1, -(-reached[-1] * round(percent * 10**6) // 10**8)) for percent in percents]  # ceilings
        return [values[bisect_left(reached, rank)] for rank in ranks]
