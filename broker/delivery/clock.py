"""The broker's clock: it only goes forward, at the pace of real time, across corrections of the system's and restarts.

Expiry and delays count on it. When the system's clock is set while the broker runs, this one goes on as before and is
then so far ahead of it, or behind. The data folder keeps that difference (`clock_watch`), and the next start goes on
with it: what was stamped before has the age that it really has. The time of day of a moment is what this clock told
then, less the difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

__all__ = ["SteadyClock"]

# Linux has a monotonic clock that goes on while the machine sleeps: to wake up is no correction.
ELAPSED: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)


class SteadyClock:
    """Tells the time in seconds since 1970, and never goes back."""

    __slots__ = ("_elapsed_s", "_offset_s", "_system_s")

    def __init__(self, system_s: Callable[[], float] = time.time, elapsed_s: Callable[[], float] = ELAPSED) -> None:
        """`system_s` tells the time of day, `elapsed_s` goes at its pace and is never set."""
        self._system_s = system_s
        self._elapsed_s = elapsed_s
        self._offset_s = system_s() - elapsed_s()

    def __call__(self) -> float:
        """Return the time now. Units: seconds."""
        return self._offset_s + self._elapsed_s()

    @property
    def ahead_ms(self) -> int:
        """How far it is ahead of the system's clock."""
        return round((self() - self._system_s()) * 1000)

    def resume(self, ahead_ms: int, seen_ms: int) -> None:
        """Go on from the last run, which was ahead of the system's clock by so much, and never before what it told."""
        self._offset_s = self._system_s() - self._elapsed_s() + ahead_ms / 1000
        self._offset_s += max(seen_ms / 1000 - self(), 0.0)
