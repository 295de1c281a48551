"""The broker's clock: the wall clock of its start, moved on by the monotonic one.

Expiry and delays count on it: a wall clock that is set back or forward while the broker runs expires nothing early and
keeps nothing late. Across a restart it is the wall clock again.
"""

from __future__ import annotations

import time

__all__ = ["SteadyClock"]


class SteadyClock:
    """Tells the time in seconds since 1970, and never goes back."""

    __slots__ = ("_offset_s",)

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Returns the time now. Units: seconds."""
        return self._offset_s + time.monotonic()
