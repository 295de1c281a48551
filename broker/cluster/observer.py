"""The observer: tell which of the other nodes is dead, by this node's clock and this node's own looks at the database.

A node is dead when its beats stood still for its lease and a margin. Only time in which the observer's own looks
succeeded counts: a look that failed, or that came late, starts all counts again. So an outage of the database, or a
pause of the observer, makes no node dead.

Units: seconds of a clock that is never set (CLOCK_BOOTTIME). The caller passes the time in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

__all__ = ["BEATS_PER_LEASE", "GAP_SHARE", "MARGIN_SHARE", "Observer", "Sighting"]

BEATS_PER_LEASE: Final = 6
MARGIN_SHARE: Final = 1 / 6  # of the lease, above it: clocks of two machines do not run equally fast
GAP_SHARE: Final = 1 / 2  # of the lease: a longer time between two looks does not count


class Sighting(NamedTuple):
    """What one look saw of a node."""

    node: str
    epoch: int
    beats: int
    lease_s: float


class _Still:
    """The beats of a node, and when a look saw them first."""

    __slots__ = ("beats", "since_s")

    def __init__(self, beats: int, since_s: float) -> None:
        self.beats = beats
        self.since_s = since_s


class Observer:
    """What this node has seen of the others.

    Invariant: a node is dead only if its last beat, as seen, was sent longer ago than its lease. Whoever counts it out
        compares the number of its beats again under a lock, so that a node that came back meanwhile stays.
    """

    __slots__ = ("_lease_s", "_looked_s", "_nodes")

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._looked_s: float | None = None  # when the last look that succeeded was answered
        self._nodes: dict[tuple[str, int], _Still] = {}

    def failed(self) -> None:
        """Start all counts again: this node could not see the others."""
        self._looked_s = None

    def looked(self, sent_s: float, answered_s: float, seen: Iterable[Sighting]) -> list[Sighting]:
        """Take the answer of a look that was sent at `sent_s`, and return the dead nodes in it."""
        if self._looked_s is None or answered_s - self._looked_s > self._lease_s * GAP_SHARE:
            self._nodes.clear()
        self._looked_s = answered_s
        before, self._nodes = self._nodes, {}
        dead = []
        for sighting in seen:
            key = sighting.node, sighting.epoch
            still = before.get(key)
            if still is None or still.beats != sighting.beats:
                still = _Still(sighting.beats, answered_s)
            elif sent_s - still.since_s > max(sighting.lease_s, self._lease_s) * (1 + MARGIN_SHARE):
                dead.append(sighting)
            self._nodes[key] = still
        return dead

    def age_s(self, node: str, epoch: int, now_s: float) -> float:
        """Return for how long the beats of a node have stood still, as far as this node has seen."""
        still = self._nodes.get((node, epoch))
        return 0.0 if still is None else max(now_s - still.since_s, 0.0)

    def sees(self, now_s: float) -> bool:
        """Return whether the newest look succeeded and is not old: otherwise nobody knows how the others are."""
        return self._looked_s is not None and now_s - self._looked_s <= self._lease_s * GAP_SHARE
