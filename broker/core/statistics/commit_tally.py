"""Counts of commits, and how long each took."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

__all__ = ["COMMIT_BOUNDS_S", "CommitTally"]

COMMIT_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
)  # fmt: skip


class CommitTally:
    """A histogram of the durations of commits, from the start of the write to the confirms.

    Shapes: ``counts`` has one number for each of COMMIT_BOUNDS_S, the longest duration that it counts, and one for the
        rest.
    Units: ``total_s`` is the sum of the durations, ``total_bytes`` that of what was written.
    Cost: one step for each commit, whatever the number of messages.
    """

    __slots__ = ("counts", "total_bytes", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(COMMIT_BOUNDS_S) + 1)
        self.total_s = 0.0
        self.total_bytes = 0

    def committed(self, duration_s: float, size_bytes: int) -> None:
        """Count a commit."""
        self.counts[bisect_left(COMMIT_BOUNDS_S, duration_s)] += 1
        self.total_s += duration_s
        self.total_bytes += size_bytes

    def add(self, other: CommitTally) -> None:
        """Add the counts of another tally."""
        self.counts = [one + another for one, another in zip(self.counts, other.counts, strict=True)]
        self.total_s += other.total_s
        self.total_bytes += other.total_bytes
