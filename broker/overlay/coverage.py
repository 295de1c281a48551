"""The numbers of a stream that have arrived: all up to one, and ranges above it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Coverage:
    """The numbers up to `upto`, and disjoint ranges above it that do not touch each other.

    Invariant: no range begins at or below `upto` + 1.
    """

    __slots__ = ("_firsts", "_lasts", "upto")

    def __init__(self, upto: int) -> None:
        self.upto = upto
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __len__(self) -> int:
        """Return the number of ranges above `upto`."""
        return len(self._firsts)

    @property
    def last(self) -> int:
        """Return the highest number that has arrived."""
        return self._lasts[-1] if self._lasts else self.upto

    def __contains__(self, number: int) -> bool:
        """Return whether a number has arrived."""
        if number <= self.upto:
            return True
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    def add(self, first: int, last: int) -> None:
        """Add the numbers from `first` to `last`. Cost: a search, and the ranges above the new one."""
        if last < first or last <= self.upto:
            return
        if first <= self.upto + 1:
            self.upto = last
            self._join()
            return
        begin = bisect_left(self._lasts, first - 1)
        end = bisect_right(self._firsts, last + 1)
        if begin < end:
            first = min(first, self._firsts[begin])
            last = max(last, self._lasts[end - 1])
        self._firsts[begin:end] = [first]
        self._lasts[begin:end] = [last]

    def hole(self, reached: int) -> tuple[int, int] | None:
        """Return the first and the last number of the first range up to `reached` that has not arrived."""
        if self._firsts:
            return self.upto + 1, self._firsts[0] - 1
        return (self.upto + 1, reached) if reached > self.upto else None

    def forget_later(self) -> None:
        """Drop the ranges above `upto`."""
        self._firsts.clear()
        self._lasts.clear()

    def _join(self) -> None:
        """Drop the ranges that `upto` has reached."""
        end = bisect_right(self._firsts, self.upto + 1)
        if end:
            self.upto = max(self.upto, self._lasts[end - 1])
            del self._firsts[:end], self._lasts[:end]
