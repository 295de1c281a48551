"""The lag of the cursors of a tap: the slot files that a reader has not passed yet."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TypedDict

from broker.slot_files.seal_log import Seal

__all__ = ["Lag", "LagTable"]


class Lag(TypedDict):
    """The lag of one reader. Units: ``lag_s`` is the age of the oldest message that it has not passed, 0 for none."""

    lag_slots: int
    lag_messages: int
    lag_bytes: int
    lag_s: float


class LagTable:
    """The slot files of a tap with running sums, so that the lag of a cursor takes one binary search.

    Shapes: the seals rise.
    """

    def __init__(self, seals: Sequence[Seal]) -> None:
        self._seals = seals
        self._numbers = [seal.seal for seal in seals]
        self._messages = [0, *accumulate(seal.count for seal in seals)]  # in the first n files
        self._bytes = [0, *accumulate(seal.bytes for seal in seals)]

    def behind(self, seal: int, now_ms: int) -> Lag:
        """Return the lag of a reader that has passed a seal. Units: `now_ms` is the time of day."""
        passed = bisect_right(self._numbers, seal)
        return {
            "lag_slots": len(self._seals) - passed,
            "lag_messages": self._messages[-1] - self._messages[passed],
            "lag_bytes": self._bytes[-1] - self._bytes[passed],
            "lag_s": self._age_ms(passed, now_ms) / 1000,
        }

    def _age_ms(self, passed: int, now_ms: int) -> int:
        """Return the age of the first message after this many files, whatever corrections the clock has had."""
        if passed == len(self._seals):
            return 0
        oldest, newest = self._seals[passed], self._seals[-1]
        return max(0, now_ms + newest.ahead_ms - oldest.first_ts_ms - oldest.ahead_ms)
