"""The direction of one tree node: the replicas of its brokers, and the union of their announcements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from broker.overlay.packets import Space
from broker.overlay.replica import Replica, ReplicaChange


@dataclass(frozen=True, slots=True)
class DirectionChange:
    """The leaves with another virtual time, the spaces with other interested leaves, and the changed sets."""

    leaves: set[str]
    spaces: set[Space]
    durable: bool
    unreachable: bool


class Direction:
    """Merges the replicas of the brokers of one tree node.

    The time of a leaf is the latest of all replicas, because the union of their patterns contains those of the replica
    that has it. The replicas with a leaf's latest time know the spaces in which it is interested.
    """

    def __init__(self, times: dict[str, int]) -> None:
        self.replicas: dict[str, Replica] = {}
        self.times = times
        self.interested: dict[Space, set[str]] = {}
        self.durable: set[str] = set()
        self.unreachable: set[str] = set()

    def refresh(self, change: ReplicaChange) -> DirectionChange:
        """Merge again what a change of one replica affects. Cost: the leaves that changed, not all leaves."""
        changed: set[str] = set()
        replicas = self.replicas.values()
        for leaf in change.leaves:
            times = [replica.times[leaf] for replica in replicas if leaf in replica.times]
            if not times:
                if self.times.pop(leaf, None) is not None:
                    changed.add(leaf)
            elif self.times.get(leaf) != max(times):
                self.times[leaf] = max(times)
                changed.add(leaf)
        pairs = {(space, leaf) for space, leaves in change.interested.items() for leaf in leaves}
        for replica in replicas:
            for space, leaves in replica.interested.items() if change.leaves else ():
                pairs.update((space, leaf) for leaf in leaves.intersection(change.leaves))
        spaces = {space for space, leaf in pairs if self._set_interested(space, leaf)}
        other_durable = False
        if self.durable or any(replica.durable for replica in replicas):
            for leaf in change.leaves | change.durable:
                durable = any(leaf in replica.durable for replica in self._latest(leaf))
                if durable != (leaf in self.durable):
                    other_durable = True
                    (self.durable.add if durable else self.durable.discard)(leaf)
        return DirectionChange(changed, spaces, other_durable, self.review_reach(change.reached))

    def review_reach(self, leaves: Iterable[str]) -> bool:
        """Check again which of some leaves are unreachable, and return whether that has changed for any."""
        changed = False
        if (
            not self.unreachable
            and len(self.replicas) == 1
            and all(replica.lost_ms is None and not replica.unreachable for replica in self.replicas.values())
        ):
            return False  # each leaf is one that this replica reaches
        for leaf in leaves:
            lost = leaf in self.times and not any(replica.reaches(leaf) for replica in self.replicas.values())
            if lost != (leaf in self.unreachable):
                changed = True
                (self.unreachable.add if lost else self.unreachable.discard)(leaf)
        return changed

    def reaches(self, leaf: str) -> bool:
        """Return whether a link leads to a broker of the node that reaches a leaf."""
        return leaf in self.times and leaf not in self.unreachable

    def knows(self, lost: Replica, leaves: Iterable[str]) -> bool:
        """Return whether for each of the leaves a live replica is as late as the lost one."""
        live = [replica.times for replica in self.replicas.values() if replica.lost_ms is None]
        return all(any(times.get(leaf, -1) >= lost.times.get(leaf, 0) for times in live) for leaf in leaves)

    def _latest(self, leaf: str) -> list[Replica]:
        """Return the replicas that have the latest time of a leaf."""
        latest = self.times.get(leaf)
        return [replica for replica in self.replicas.values() if replica.times.get(leaf) == latest]

    def _set_interested(self, space: Space, leaf: str) -> bool:
        """Note whether a leaf is interested in a space, and return whether that has changed."""
        interested = any(leaf in replica.interested.get(space, ()) for replica in self._latest(leaf))
        leaves = self.interested.setdefault(space, set())
        changed = interested != (leaf in leaves)
        if changed:
            (leaves.add if interested else leaves.discard)(leaf)
        if not leaves:
            del self.interested[space]
        return changed
