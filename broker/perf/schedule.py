"""When the messages of a publisher are due: at a steady rate, in whole nanoseconds, exact to the last message."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

_MOST_PARTS: Final = 10**6  # what a rate is rounded to


class Schedule:
    """An open schedule: nothing that happens moves it.

    Invariant: of the messages due at `now`, the last one's `due_ns` is not above it, and the next one's is.
    """

    __slots__ = ("_period", "_start_ns", "_times")

    def __init__(self, per_s: float) -> None:
        rate = Fraction(per_s).limit_denominator(_MOST_PARTS)
        self._period = 10**9 * rate.denominator  # nanoseconds of `_times` messages
        self._times = max(1, rate.numerator)
        self._start_ns = 0

    def start(self, at_ns: int) -> None:
        """Let the first message be due at that time."""
        self._start_ns = at_ns

    def due_ns(self, number: int) -> int:
        """Return when a message is due, counted from 0."""
        return self._start_ns + number * self._period // self._times

    def due(self, now_ns: int) -> int:
        """Return how many messages are due by now."""
        elapsed_ns = now_ns - self._start_ns
        return ((elapsed_ns + 1) * self._times - 1) // self._period + 1 if elapsed_ns >= 0 else 0
