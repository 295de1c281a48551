"""When messages should carry the latest virtual time of a leaf broker."""

from __future__ import annotations

from collections import deque
from typing import Final

FIRST_MS: Final = 1000.0
MIN_MS: Final = 200.0
MAX_MS: Final = 30_000.0


class ExpectedTime:
    """Estimates how long a virtual time takes to come back in a message, and tells when one should long have it.

    Source: the Gryphon paper, section 4; RFC 6298 for the estimate.
    """

    __slots__ = ("_due_ms", "_expected", "_smoothed_ms", "_timeout_ms", "_variation_ms", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int]] = deque()  # virtual times with when they were announced
        self._smoothed_ms: float | None = None
        self._variation_ms = 0.0
        self._timeout_ms = FIRST_MS
        self._expected = 0
        self._due_ms = 0.0

    def expect(self, time: int, now_ms: int) -> None:
        """Expect messages with a virtual time that was announced now."""
        self._waiting.append((time, now_ms))
        self._expected = time
        self._due_ms = now_ms + self._timeout_ms

    def is_late(self, time: int, now_ms: int) -> bool:
        """Take the virtual time of a message, and return whether the announcement should be repeated.

        The next repetition is due later and later.
        """
        while self._waiting and self._waiting[0][0] <= time:
            self._measure(now_ms - self._waiting.popleft()[1])
        if time >= self._expected or now_ms < self._due_ms:
            return False
        self._timeout_ms = min(2 * self._timeout_ms, MAX_MS)
        self._due_ms = now_ms + self._timeout_ms
        return True

    def _measure(self, took_ms: int) -> None:
        if self._smoothed_ms is None:
            self._smoothed_ms, self._variation_ms = took_ms, took_ms / 2
        else:
            self._variation_ms = 0.75 * self._variation_ms + 0.25 * abs(self._smoothed_ms - took_ms)
            self._smoothed_ms = 0.875 * self._smoothed_ms + 0.125 * took_ms
        self._timeout_ms = min(max(self._smoothed_ms + 4 * self._variation_ms, MIN_MS), MAX_MS)
