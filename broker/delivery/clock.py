"""The broker's clock: it advances steadily and never goes back while the broker runs, even if the system clock is set.

Expiry and delays rely on it. When the system clock is set, this clock does not follow, and differs from then on. The
data folder keeps the difference (`clock_watch`), and the next start resumes with it, so that timestamps keep their true
age. Wall-clock time is the reading of this clock minus the difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

# Linux has a monotonic clock that also counts while the machine sleeps, so waking up is not taken for a correction.
ELAPSED: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)


class SteadyClock:
    """A clock in seconds since 1970 that never goes back, except in `resume`."""

    def __init__(self, system_s: Callable[[], float] = time.time, elapsed_s: Callable[[], float] = ELAPSED) -> None:
        """`system_s` returns the wall-clock time; `elapsed_s` counts seconds and is never set."""
        self._system_s = system_s
        self._elapsed_s = elapsed_s
        self._offset_s = system_s() - elapsed_s()

    def __call__(self) -> float:
        """Return the time now. Units: seconds."""
        return self._offset_s + self._elapsed_s()

    @property
    def ahead_ms(self) -> int:
        """The milliseconds by which this clock is ahead of the system clock."""
        return round((self() - self._system_s()) * 1000)

    def resume(self, ahead_ms: int, seen_ms: int) -> None:
        """Resume at `ahead_ms` ahead of the system clock, but not before `seen_ms`, the last time that is on disk."""
        self._offset_s = self._system_s() - self._elapsed_s() + ahead_ms / 1000
        self._offset_s += max(seen_ms / 1000 - self(), 0.0)
