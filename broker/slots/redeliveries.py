"""Redeliveries: the returned messages of one slot, and how often each was returned."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from bitarray import bitarray
from mypy_extensions import mypyc_attr

COUNT_MAX: Final = (1 << 32) - 1


class ReturnRun(NamedTuple):
    """Consecutive messages of a slot, first <= index < end, with equal counts of returns. Shapes: ``acquired`` counts
    all returns, ``delivered`` those that count towards the delivery limit. Both are 0 for messages that may have been
    delivered, but have no known return.
    """

    first: int
    end: int
    acquired: int
    delivered: int


@mypyc_attr(acyclic=True)  # when compiled, the garbage collector ignores it
class Redeliveries:
    """Count the returns of the messages of one slot. Shapes: a bit is set once its message may have been delivered
    before; missing bits are not set. `_acquired` and `_delivered` are as in `ReturnRun`, one for each bit; they are
    None while each marked message was returned once, and `_failed` then tells whether these returns count towards the
    delivery limit.
    """

    __slots__ = ("_acquired", "_bits", "_delivered", "_failed")

    def __init__(self) -> None:
        self._bits = bitarray(endian="little")
        self._acquired: array[int] | None = None
        self._delivered: array[int] | None = None
        self._failed = True

    def __contains__(self, index: int) -> bool:
        bits = self._bits
        return index < len(bits) and bool(bits[index])

    def acquired(self, index: int) -> int:
        """Return how often a message was returned."""
        if index not in self:
            return 0
        acquired = self._acquired
        return 1 if acquired is None else acquired[index]

    def delivered(self, index: int) -> int:
        """Return how many returns of a message count towards the delivery limit."""
        if index not in self:
            return 0
        delivered = self._delivered
        return int(self._failed) if delivered is None else delivered[index]

    def among(self, indexes: Sequence[int]) -> int:
        """Return how many of these messages may have been delivered before."""
        bits = self._bits
        if isinstance(indexes, range):
            return bits.count(1, indexes.start, indexes.stop)
        known = len(bits)
        return len([index for index in indexes if index < known and bits[index]])

    def at_limit(self, indexes: Sequence[int], limit: int) -> list[int]:
        """List the messages among `indexes` that have reached the delivery limit."""
        if limit > 1 and self._delivered is None:
            return []
        return [index for index in indexes if self.delivered(index) >= limit]

    def add(self, indexes: Sequence[int], *, failed: bool) -> None:
        """Count one more return for each message; `indexes` ascend and are not empty. A `failed` delivery counts
        towards the limit. Cost: a few slice assignments for a range of messages with equal counts.
        """
        self._grow(indexes[-1] + 1)
        if self._acquired is None:
            if not self._bits.any():
                self._failed = failed
            elif failed != self._failed or self.among(indexes):
                self._count()
        if self._acquired is not None and self._delivered is not None:
            count_up(self._acquired, indexes)
            if failed:
                count_up(self._delivered, indexes)
        put_bits(self._bits, indexes, 1)

    def put(self, run: ReturnRun) -> None:
        """Set the counts of a run, replacing earlier ones."""
        first, end, acquired, delivered = run
        self._grow(end)
        if self._acquired is None:
            if not self._bits.any() and delivered in (0, 1):
                self._failed = delivered == 1
            if acquired != 1 or delivered != int(self._failed):
                self._count()
        if self._acquired is not None and self._delivered is not None:
            self._acquired[first:end] = array("I", (acquired,)) * (end - first)
            self._delivered[first:end] = array("I", (delivered,)) * (end - first)
        self._bits[first:end] = 1

    def doubt(self, first: int, end: int) -> None:
        """Mark the messages first <= index < end as possibly delivered before."""
        if first < end:
            self._grow(end)
            self._count()
            self._bits[first:end] = 1

    def runs(self, indexes: Sequence[int]) -> list[ReturnRun]:
        """Return the runs of those messages that may have been delivered before. Shapes: indexes and runs ascend."""
        found: list[ReturnRun] = []
        bits = self._bits
        for start, end_of_span in spans(indexes):
            stop = min(end_of_span, len(bits))
            at = bits.find(1, start, stop) if start < stop else -1
            while at >= 0:
                end = bits.find(0, at, stop)
                if end < 0:
                    end = stop
                found += self._equal_runs(at, end)
                at = bits.find(1, end, stop) if end < stop else -1
        return found

    def _equal_runs(self, start: int, stop: int) -> list[ReturnRun]:
        """Split consecutive returned messages into runs of equal counts."""
        acquired, delivered = self._acquired, self._delivered
        if acquired is None or delivered is None:
            return [ReturnRun(start, stop, 1, int(self._failed))]
        if are_equal(acquired[start:stop]) and are_equal(delivered[start:stop]):
            return [ReturnRun(start, stop, acquired[start], delivered[start])]
        found: list[ReturnRun] = []
        first = start
        for index in range(start + 1, stop + 1):
            if index == stop or acquired[index] != acquired[first] or delivered[index] != delivered[first]:
                found.append(ReturnRun(first, index, acquired[first], delivered[first]))
                first = index
        return found

    def _count(self) -> None:
        """Start to count the returns of each message."""
        if self._acquired is None:
            self._acquired = array("I", self._bits.tolist())
            self._delivered = array("I", self._acquired) if self._failed else array("I", (0,)) * len(self._bits)

    def _grow(self, length: int) -> None:
        """Extend the bits, and the counts if there are any, to `length` messages."""
        missing = length - len(self._bits)
        if missing > 0:
            self._bits.extend(bytes(missing))
            if self._acquired is not None and self._delivered is not None:
                self._acquired.extend(array("I", (0,)) * missing)
                self._delivered.extend(array("I", (0,)) * missing)


def spans(indexes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield start and stop of each run of consecutive indexes; `indexes` ascend."""
    if isinstance(indexes, range):
        if indexes:
            yield indexes.start, indexes.stop
        return
    start = stop = -1
    for index in indexes:
        if index != stop:
            if start < stop:
                yield start, stop
            start = index
        stop = index + 1
    if start < stop:
        yield start, stop


def put_bits(bits: bitarray, indexes: Sequence[int], value: int) -> None:
    """Set or clear the bits of messages. Cost: one slice assignment for a range."""
    if isinstance(indexes, range):
        bits[indexes.start : indexes.stop] = value
    else:
        for index in indexes:
            bits[index] = value


def count_up(counts: array[int], indexes: Sequence[int]) -> None:
    """Add one to the counts of messages, up to COUNT_MAX."""
    if isinstance(indexes, range):
        counted = counts[indexes.start : indexes.stop]
        if are_equal(counted) and counted[0] < COUNT_MAX:
            counts[indexes.start : indexes.stop] = array("I", (counted[0] + 1,)) * len(counted)
            return
    for index in indexes:
        counts[index] = min(counts[index] + 1, COUNT_MAX)


def are_equal(counts: array[int]) -> bool:
    """Return whether all counts, at least one, are equal."""
    return counts.count(counts[0]) == len(counts)
