"""The progress of leaves on a stream: the numbers received, acknowledged, and sent to lagging leaves."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from typing import Final

from broker.overlay.packets import Space


class Coverage:
    """The numbers up to `upto`, and disjoint ranges above it that do not touch each other.

    Invariant: no range begins at or below `upto` + 1.
    """

    __slots__ = ("_firsts", "_lasts", "upto")

    def __init__(self, upto: int) -> None:
        self.upto = upto
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    @property
    def ranges(self) -> int:
        """The number of ranges above `upto`."""
        return len(self._firsts)

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


class Acknowledgements:
    """The positions of leaves in one stream: each has all numbers up to its position.

    A position only grows, and only by an ack that counts for the leaf. A leaf without a position counts as 0, so
    nothing of the stream is dropped before it has acknowledged something.
    """

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}

    def credit(self, leaves: Iterable[str], number: int) -> None:
        """Raise the positions of these leaves to a number. Cost: O(leaves)."""
        positions = self._positions
        for leaf in leaves:
            if positions.get(leaf, 0) < number:
                positions[leaf] = number

    def position(self, leaf: str) -> int:
        """Return the position of a leaf, 0 if it has acknowledged nothing."""
        return self._positions.get(leaf, 0)

    def least(self, leaves: Iterable[str]) -> int | None:
        """Return the lowest position of these leaves, None without leaves. Cost: O(leaves)."""
        positions = self._positions
        return min((positions.get(leaf, 0) for leaf in leaves), default=None)

    def retain(self, leaves: frozenset[str]) -> None:
        """Drop the positions of all other leaves."""
        self._positions = {leaf: number for leaf, number in self._positions.items() if leaf in leaves}


class LagWatch:
    """Report streams whose acks have made no progress for `stall_ms`, and again after each further `tip_ms`."""

    def __init__(self, stall_ms: int, tip_ms: int) -> None:
        self._stall_ms = stall_ms
        self._tip_ms = tip_ms
        self._due: dict[Space, tuple[int, int]] = {}  # the first number that is not acknowledged, and when to report it

    def stands(self, space: Space, needed: int, sent: int, now_ms: int) -> bool:
        """Return whether to report a stream as stuck. `needed` is the first number missing at a leaf."""
        if needed > sent:
            self._due.pop(space, None)
            return False
        known, due_ms = self._due.get(space, (0, 0))
        if known != needed:
            self._due[space] = (needed, now_ms + self._stall_ms)
            return False
        if now_ms < due_ms:
            return False
        self._due[space] = (needed, now_ms + self._tip_ms)
        return True

    def forget(self, space: Space) -> None:
        """Drop a stream that no leaf needs."""
        self._due.pop(space, None)


PATIENCE_ACKS: Final = 10


class CatchUp:
    """The publishing leaf's answers to the requests of one leaf: from a number on, up to a window of bytes.

    A request that continues where the last one was answered moves the window; a repeated one restarts it. It is
    complete once it has everything that was sent to others; later numbers reach the leaf as they reach the others.
    """

    def __init__(self, first: int) -> None:
        self.since = self.next = first
        self.flight_bytes = 0
        self.is_complete = False
        self._in_flight: deque[tuple[int, int]] = deque()  # the last numbers of runs, and their bytes

    def goes_on(self, first: int) -> bool:
        """Return whether a request for the numbers from `first` on says that the sent ones before have arrived."""
        if not self.since < first <= self.next:
            return False
        self.since = first
        while self._in_flight and self._in_flight[0][0] < first:
            self.flight_bytes -= self._in_flight.popleft()[1]
        return True

    def sent(self, last: int, size_bytes: int) -> None:
        """Record that the numbers up to `last` were sent."""
        self.next = last + 1
        self.flight_bytes += size_bytes
        self._in_flight.append((last, size_bytes))

    def complete(self, sent: int) -> None:
        """Record that a part of the answer was sent; it is complete if it has reached the numbers sent to others."""
        self.is_complete = self.is_complete or self.next > sent

    def limit(self) -> None:
        """Record that the request ends at a number; later numbers belong to another answer."""
        self.is_complete = False


class Behind:
    """A stream of which a link has skipped numbers: until its leaf has caught up, nothing else of it is sent there.
    `reached` is the last skipped number. So no message crosses the link twice: the leaf asks, the answers begin at its
    position, and once they have reached `reached` the stream continues normally.
    """

    def __init__(self, reached: int) -> None:
        self.reached = reached
        self.asked = False
        self._checkpoint = reached
        self._acks = 0

    def ask(self) -> None:
        """Record that the leaf asks over this link."""
        self.asked = True

    def leave_out(self, last: int) -> None:
        """Record that the link skipped the numbers up to `last`."""
        self.reached = max(self.reached, last)

    def caught_up(self, number: int) -> bool:
        """Return whether a leaf that acknowledges a number has caught up, or nearly so over another broker."""
        if number >= self.reached or (not self.asked and number >= self._checkpoint):
            return True
        self._acks += 1
        if self._acks % PATIENCE_ACKS == 0:
            self._checkpoint = self.reached
        return False
