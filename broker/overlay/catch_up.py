"""A leaf that lags behind a stream: how much it is sent ahead of its requests, and what a neighbour keeps from it."""

from __future__ import annotations

from collections import deque
from typing import Final

PATIENCE_ACKS: Final = 10


class CatchUp:
    """What the publishing leaf sends one leaf in answer to its questions: from a number on, up to a window of bytes.

    A request that continues where the last one was answered moves the window; a repeated one restarts it.
    It is complete when it has everything that was sent to others: what follows reaches the leaf as it reaches them.
    """

    def __init__(self, first: int) -> None:
        self.since = self.next = first
        self.flight_bytes = 0
        self.is_complete = False
        self._in_flight: deque[tuple[int, int]] = deque()  # the last numbers of runs, and their bytes

    def goes_on(self, first: int) -> bool:
        """Return whether a question for the numbers from `first` on says that those before have arrived."""
        if not self.since < first <= self.next:
            return False
        self.since = first
        while self._in_flight and self._in_flight[0][0] < first:
            self.flight_bytes -= self._in_flight.popleft()[1]
        return True

    def sent(self, last: int, size_bytes: int) -> None:
        """Note that the numbers up to `last` are on their way."""
        self.next = last + 1
        self.flight_bytes += size_bytes
        self._in_flight.append((last, size_bytes))

    def complete(self, sent: int) -> None:
        """Note that a part of the answer was sent: it is complete if it has reached what others were sent."""
        self.is_complete = self.is_complete or self.next > sent

    def limit(self) -> None:
        """Note that the question has an end: what follows it is another answer."""
        self.is_complete = False


class Behind:
    """A stream of which a link left something out: until its leaf has caught up, nothing else of it goes there.

    `reached` is the last number that the link left out. So no message crosses the link twice: the leaf asks, the
    answers begin where it is, and when one has reached `reached` the stream goes on by itself.
    """

    def __init__(self, reached: int) -> None:
        self.reached = reached
        self.asked = False
        self._checkpoint = reached
        self._acks = 0

    def ask(self) -> None:
        """Note that the leaf asks over this link."""
        self.asked = True

    def leave_out(self, last: int) -> None:
        """Note that the link left out the numbers up to `last`."""
        self.reached = max(self.reached, last)

    def caught_up(self, number: int) -> bool:
        """Return whether a leaf that acknowledges a number has caught up, or nearly so over another broker."""
        if number >= self.reached or (not self.asked and number >= self._checkpoint):
            return True
        self._acks += 1
        if self._acks % PATIENCE_ACKS == 0:
            self._checkpoint = self.reached
        return False
