"""The progress of leaves on a stream: the numbers that they received and acknowledged, and catching up."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from typing import Final

from broker.overlay.packets import Space


class Coverage:
    """A set of received numbers: all up to `upto`, and ranges above it.

    Invariant: the ranges are ascending, with a hole before each.
    """

    __slots__ = ("_firsts", "_lasts", "upto")

    def __init__(self, upto: int) -> None:
        self.upto = upto
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    @property
    def ranges(self) -> int:
        return len(self._firsts)

    def __contains__(self, number: int) -> bool:
        if number <= self.upto:
            return True
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    def add(self, first: int, last: int) -> None:
        """Add the numbers from `first` to `last`. Cost: a binary search, and O(ranges above the new one)."""
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
        """Return the first and the last number of the first hole up to `reached`, or None if there is no hole."""
        if self._firsts:
            return self.upto + 1, self._firsts[0] - 1
        return (self.upto + 1, reached) if reached > self.upto else None

    def forget_later(self) -> None:
        """Remove the ranges above `upto`."""
        self._firsts.clear()
        self._lasts.clear()

    def _join(self) -> None:
        """Merge the ranges that `upto` has reached."""
        end = bisect_right(self._firsts, self.upto + 1)
        if end:
            self.upto = max(self.upto, self._lasts[end - 1])
            del self._firsts[:end], self._lasts[:end]


class Acknowledgements:
    """The positions of leaves in one stream: each has received all numbers up to its position.

    While a position is kept it only rises: with acks of the leaf, and with the vector change that adds the leaf. A leaf
    without a position is taken to be at 0, so nothing of the stream is removed before the leaf has one.
    """

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}

    def credit(self, leaves: Iterable[str], number: int) -> None:
        """Raise the positions of leaves to a number. Cost: O(leaves)."""
        positions = self._positions
        for leaf in leaves:
            if positions.get(leaf, 0) < number:
                positions[leaf] = number

    def position(self, leaf: str) -> int:
        """Return the position of a leaf, or 0 if it does not have one."""
        return self._positions.get(leaf, 0)

    def least(self, leaves: Iterable[str]) -> int | None:
        """Return the lowest position of leaves, or None if there are none. Cost: O(leaves)."""
        positions = self._positions
        return min((positions.get(leaf, 0) for leaf in leaves), default=None)

    def retain(self, leaves: frozenset[str]) -> None:
        """Drop the positions of all other leaves."""
        self._positions = {leaf: number for leaf, number in self._positions.items() if leaf in leaves}


class LagWatch:
    """Detect streams whose acks made no progress for `stall_ms`, and again after each further `tip_ms`."""

    def __init__(self, stall_ms: int, tip_ms: int) -> None:
        self._stall_ms = stall_ms
        self._tip_ms = tip_ms
        self._due: dict[Space, tuple[int, int]] = {}  # (first number without an ack, when the stream counts as stuck)

    def is_stuck(self, space: Space, needed: int, sent: int, now_ms: int) -> bool:
        """Return whether a stream counts as stuck now. `needed` is the first number that a leaf did not acknowledge."""
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
        self._due.pop(space, None)


CHECKPOINT_ACKS: Final = 10  # how many acks of a lagging leaf move its checkpoint


class CatchUp:
    """The publishing leaf's answers to the requests of one leaf: the numbers from `first` on, limited by a window of
    bytes in flight.

    A request that continues after answered numbers moves the window; a repeated request restarts the answer. The answer
    is complete once it contains everything that was sent to all leaves; later numbers are sent to all leaves alike.
    """

    def __init__(self, first: int) -> None:
        self.since = self.next = first
        self.flight_bytes = 0
        self.is_complete = False
        self._in_flight: deque[tuple[int, int]] = deque()  # the last number of each run, and its bytes

    def continues(self, first: int) -> bool:
        """Return whether a request from `first` on acknowledges sent numbers, and release their bytes."""
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
        """Record that a part was sent: the answer is complete if it contains the numbers up to `sent`."""
        self.is_complete = self.is_complete or self.next > sent

    def limit(self) -> None:
        """Record that the request ends at a number: the answer continues up to it, even if it was complete."""
        self.is_complete = False


class LaggingStream:
    """A stream of which a link to a leaf has skipped numbers up to `reached`, because the link was full or not open.

    Until the leaf has caught up, the link sends only answers to its requests, so that no message is sent twice. The
    answers start at the leaf's position; when they have reached `reached`, the stream continues normally.
    """

    def __init__(self, reached: int) -> None:
        self.reached = reached
        self.requested = False
        self._checkpoint = reached  # where a leaf that catches up through another broker is nearly up to date
        self._acks = 0

    def mark_requested(self) -> None:
        """Record that the leaf has sent its request over this link."""
        self.requested = True

    def skip(self, last: int) -> None:
        """Record that the link skipped the numbers up to `last`."""
        self.reached = max(self.reached, last)

    def has_caught_up(self, number: int) -> bool:
        """Return whether a leaf that acknowledges a number has caught up, or nearly so through another broker."""
        if number >= self.reached or (not self.requested and number >= self._checkpoint):
            return True
        self._acks += 1
        if self._acks % CHECKPOINT_ACKS == 0:
            self._checkpoint = self.reached
        return False
