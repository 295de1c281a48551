"""Counts durations in log-linear cells: three significant digits from a nanosecond to an hour, at a fixed size.

Source: the layout of HdrHistogram, with 2048 cells for the smallest values and 1024 for every power of two above.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate

HIGHEST_NS = 3_600 * 10**9

_EXACT_BITS = 11  # 2048 is the first power of two that keeps three digits
_HALF_BITS = _EXACT_BITS - 1
_HALF = 1 << _HALF_BITS
_CELLS = ((HIGHEST_NS.bit_length() - _EXACT_BITS) << _HALF_BITS) + (HIGHEST_NS >> 31) + 1


class Histogram:
    """Counts how often each duration occurred.

    Units: nanoseconds; a value below 0 counts as 0, a value above an hour as an hour.
    Cost: a shift and an addition per record, and 265 KiB of memory for any number of records.
    """

    def __init__(self) -> None:
        self._cells = array("Q", bytes(8 * _CELLS))

    def record(self, value_ns: int, count: int = 1) -> None:
        """Count a duration `count` times."""
        if not 0 <= value_ns <= HIGHEST_NS:
            value_ns = 0 if value_ns < 0 else HIGHEST_NS
        shift = value_ns.bit_length() - _EXACT_BITS
        self._cells[(shift << _HALF_BITS) + (value_ns >> shift) if shift > 0 else value_ns] += count

    def merge(self, other: Histogram) -> None:
        """Add all counts of another histogram."""
        for cell, count in other._filled():
            self._cells[cell] += count

    def clear(self) -> None:
        """Reset all counts for the next interval."""
        self._cells = array("Q", bytes(8 * _CELLS))

    @property
    def count(self) -> int:
        """The number of counted durations."""
        return sum(self._cells)

    @property
    def mean_ns(self) -> float:
        """The mean; 0 if nothing was counted."""
        count = self.count
        return sum(_value(cell) * times for cell, times in self._filled()) / count if count else 0.0

    def percentile(self, percent: float) -> int:
        """Return the duration that `percent` of all durations do not exceed, to three digits; 0 if there are none."""
        return self.percentiles((percent,))[0]

    def percentiles(self, percents: Sequence[float]) -> list[int]:
        """Return `percentile` of each; `percents` ascend.

        Cost: one pass over the cells for all of them.
        """
        filled = list(self._filled())
        if not filled:
            return [0] * len(percents)
        total = self.count
        reached = list(accumulate(count for _, count in filled))
        found, at = [], 0
        for percent in percents:
            rank = max(1, -(-total * round(percent * 10**6) // 10**8))  # the ceiling, in whole numbers
            while reached[at] < rank:
                at += 1
            found.append(_value(filled[at][0]))
        return found

    def to_list(self) -> list[int]:
        """Return the filled cells for a pipe or a file.

        Shapes: cell, count, cell, count, ...
        """
        return [number for pair in self._filled() for number in pair]

    @classmethod
    def from_list(cls, numbers: Sequence[int]) -> Histogram:
        """Return the histogram whose `to_list` gave these numbers.

        Raises: ValueError for numbers that `to_list` never returns.
        """
        histogram = cls()
        if len(numbers) % 2:
            raise ValueError("a histogram is a list of pairs")
        for cell, count in zip(numbers[::2], numbers[1::2], strict=True):
            if not 0 <= cell < _CELLS or count < 1:
                raise ValueError(f"a histogram has no cell {cell} with {count} in it")
            histogram._cells[cell] += count
        return histogram

    def _filled(self) -> Iterator[tuple[int, int]]:
        return ((cell, count) for cell, count in enumerate(self._cells) if count)


def _value(cell: int) -> int:
    """Return the duration in the middle of a cell."""
    if cell < 2 * _HALF:
        return cell
    shift = (cell >> _HALF_BITS) - 1
    low = ((cell & (_HALF - 1)) + _HALF) << shift
    return low + (1 << shift >> 1)
