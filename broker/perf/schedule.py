"""The due times of a publisher's messages: a steady rate, in whole nanoseconds, exact to the last message."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

_MOST_PARTS: Final = 10**6  # the largest denominator of a rate


class Schedule:
    """An open schedule: its due times are independent of progress.

    Invariant: of the messages due at `now`, the last has `due_ns` <= `now`, and the next has a later one.
    """

    __slots__ = ("_period", "_start_ns", "_times")

    def __init__(self, per_s: float) -> None:
        rate = Fraction(per_s).limit_denominator(_MOST_PARTS)
        self._period = 10**9 * rate.denominator  # nanoseconds of `_times` messages
        self._times = max(1, rate.numerator)
        self._start_ns = 0

    def start(self, at_ns: int) -> None:
        """Set the due time of the first message."""
        self._start_ns = at_ns

    def due_ns(self, number: int) -> int:
        """Return when a message is due; numbers start at 0."""
        return self._start_ns + number * self._period // self._times

    def due(self, now_ns: int) -> int:
        """Return how many messages are due by now."""
        elapsed_ns = now_ns - self._start_ns
        return ((elapsed_ns + 1) * self._times - 1) // self._period + 1 if elapsed_ns >= 0 else 0
