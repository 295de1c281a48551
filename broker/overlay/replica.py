"""Replicas of the announcements of a tree node's brokers, and the direction that merges them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from broker.overlay.packets import Conjunction, Space, Update


@dataclass(slots=True)
class ReplicaChange:
    """The changes that an update makes to a replica.

    Shapes: `added` and `removed` are patterns, `leaves` are leaves with a changed virtual time. `interested` and
        `durable` are the leaves that entered or left these sets, `reached` those whose reachability through the sender
        may have changed. `touched` are the spaces whose bindings have changed at a leaf.
    """

    added: list[Conjunction] = field(default_factory=list)
    removed: list[Conjunction] = field(default_factory=list)
    leaves: set[str] = field(default_factory=set)
    interested: dict[Space, frozenset[str]] = field(default_factory=dict)
    durable: set[str] = field(default_factory=set)
    reached: set[str] = field(default_factory=set)
    touched: set[Space] = field(default_factory=set)


class Replica:
    """The announcements of one sender: its patterns and, for each leaf broker reached through it, the virtual time up
    to which the patterns are complete.

    An update may have several parts. The additions of a part take effect at once, because extra patterns lose no
    message. Removals and virtual times take effect with the last part. A full update replaces everything; until its
    last part, the earlier patterns are also kept. `expected` is the serial of the next part, or 0 before the first full
    update.

    Invariant: the patterns match every message that an active subscription of a leaf in `times` wants, if its start
        point is not later than the leaf's time there.
    """

    def __init__(self) -> None:
        self.session = 0
        self.expected = 0
        self.lost_ms: int | None = None
        self.patterns: dict[Space, set[str]] = {}
        self.times: dict[str, int] = {}
        self.interested: dict[Space, frozenset[str]] = {}
        self.durable: frozenset[str] = frozenset()
        self.unreachable: frozenset[str] = frozenset()
        self._kept: dict[Space, set[str]] | None = None  # the patterns of an incomplete full update, or None
        self._removed: list[Conjunction] = []

    def begin(self, session: int) -> None:
        """Expect a full update in a new session of the link."""
        self.session = session
        self.expected = 0
        self.lost_ms = None
        self._kept = None
        self._removed = []

    def lose(self, now_ms: int) -> None:
        """Record that the link was lost. The announcements stay valid."""
        self.lost_ms = now_ms
        self._kept = None
        self._removed = []

    def replaced_by(self, update: Update) -> Replica | None:
        """Return a copy of the announcements if this part completes a full update that knows less of a leaf; else None.

        A restarted broker knows nothing at first. Until it knows as much again, the copy is still used for matching.
        """
        whole = self._is_next(update) and update.last and (update.full or self._kept is not None)
        if not whole or all(update.slice.get(leaf, -1) >= time for leaf, time in self.times.items()):
            return None
        copy = Replica()
        copy.copy_from(self)
        return copy

    def copy_from(self, other: Replica) -> None:
        """Copy the announcements of another replica."""
        self.patterns = {space: set(texts) for space, texts in other.patterns.items()}
        self.times = dict(other.times)
        self.interested = dict(other.interested)
        self.durable = other.durable
        self.unreachable = other.unreachable

    def receive(self, update: Update) -> ReplicaChange | None:
        """Apply one part of an update; return None if it is not the next one.

        The first part of a full update may skip serials, because it replaces everything before it.
        """
        if not self._is_next(update):
            return None
        self.expected = update.serial + 1
        if update.full:
            self._kept = {}
            self._removed = []
        change = ReplicaChange(self._add(update.added))
        self._removed += update.removed
        if update.last:
            self._complete(update, change)
        return change

    def withdraw(self) -> ReplicaChange:
        """Withdraw all announcements."""
        change = ReplicaChange()
        self._kept = {}
        self._complete(Update(0, full=True, last=True, durable=()), change)
        return change

    def reaches(self, leaf: str) -> bool:
        """Return whether the sender has a link, and can reach a leaf."""
        return self.lost_ms is None and leaf in self.times and leaf not in self.unreachable

    def forget(self, leaf: str) -> ReplicaChange:
        """Withdraw a leaf, but no pattern, because it is unknown which patterns only this leaf wanted."""
        interested = [(space, tuple(leaves - {leaf})) for space, leaves in self.interested.items() if leaf in leaves]
        durable = tuple(self.durable - {leaf})
        update = Update(0, full=False, last=True, gone=(leaf,), interested=tuple(interested), durable=durable)
        change = ReplicaChange()
        self._complete(update, change)
        return change

    def _is_next(self, update: Update) -> bool:
        return update.serial == self.expected or (update.full and update.serial > self.expected)

    def _complete(self, update: Update, change: ReplicaChange) -> None:
        """Apply the changes that take effect with the last part."""
        whole = self._kept is not None
        removed = self._missing() if whole else self._removed
        self._kept = None
        self._removed = []
        change.removed.extend(conjunction for conjunction in removed if self._discard(conjunction))
        self._set_times(update, change, whole=whole)
        change.reached.update(change.leaves)
        interested = dict(update.interested)
        change.touched.update(update.touched, interested)
        if whole:
            change.touched.update(self.interested)
            interested = dict.fromkeys(self.interested, ()) | interested
        for space, leaves in interested.items():
            self._set_interested(space, frozenset(leaves), change)
        if whole or update.durable is not None:
            durable = frozenset(update.durable or ())
            change.durable.update(self.durable ^ durable)
            self.durable = durable
        if whole or update.unreachable is not None:
            unreachable = frozenset(update.unreachable or ())
            change.reached.update(self.unreachable ^ unreachable)
            self.unreachable = unreachable

    def _add(self, added: Iterable[Conjunction]) -> list[Conjunction]:
        """Add patterns, and return the new ones."""
        new: list[Conjunction] = []
        for conjunction in added:
            if self._kept is not None:
                self._kept.setdefault(conjunction.space, set()).add(conjunction.pattern)
            patterns = self.patterns.setdefault(conjunction.space, set())
            if conjunction.pattern not in patterns:
                patterns.add(conjunction.pattern)
                new.append(conjunction)
        return new

    def _discard(self, conjunction: Conjunction) -> bool:
        patterns = self.patterns.get(conjunction.space)
        if patterns is None or conjunction.pattern not in patterns:
            return False
        patterns.discard(conjunction.pattern)
        if not patterns:
            del self.patterns[conjunction.space]
        return True

    def _missing(self) -> list[Conjunction]:
        """Return the patterns that a full update does not contain."""
        assert self._kept is not None
        return [
            Conjunction(space, text)
            for space, texts in self.patterns.items()
            for text in texts - self._kept.get(space, set())
        ]

    def _set_times(self, update: Update, change: ReplicaChange, *, whole: bool) -> None:
        gone = {*update.gone, *(self.times.keys() - update.slice.keys() if whole else ())}
        for leaf in gone:
            if self.times.pop(leaf, None) is not None:
                change.leaves.add(leaf)
        for leaf, time in update.slice.items():
            if self.times.get(leaf) != time:
                self.times[leaf] = time
                change.leaves.add(leaf)

    def _set_interested(self, space: Space, leaves: frozenset[str], change: ReplicaChange) -> None:
        before = self.interested.get(space, frozenset())
        if before != leaves:
            change.interested[space] = before ^ leaves
        if leaves:
            self.interested[space] = leaves
        else:
            self.interested.pop(space, None)


@dataclass(frozen=True, slots=True)
class DirectionChange:
    """A change of a direction: the leaves with a changed virtual time, the spaces with changed interested leaves, and
    whether the durable and the unreachable leaves have changed.
    """

    leaves: set[str]
    spaces: set[Space]
    durable: bool
    unreachable: bool


class Direction:
    """The merged replicas of the brokers of one tree node.

    The time of a leaf is the latest in all replicas, because the union of the patterns contains those of the replica
    with that time. The replicas with a leaf's latest time define the spaces in which it is interested.
    """

    def __init__(self, times: dict[str, int]) -> None:
        self.replicas: dict[str, Replica] = {}
        self.times = times
        self.interested: dict[Space, set[str]] = {}
        self.durable: set[str] = set()
        self.unreachable: set[str] = set()

    def refresh(self, change: ReplicaChange) -> DirectionChange:
        """Merge the leaves that a change of one replica affects. Cost: O(changed leaves * spaces) for each replica."""
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
        """Update which of these leaves are unreachable, and return whether any has changed."""
        changed = False
        if (
            not self.unreachable
            and len(self.replicas) == 1
            and all(replica.lost_ms is None and not replica.unreachable for replica in self.replicas.values())
        ):
            return False  # the only replica reaches every leaf
        for leaf in leaves:
            lost = leaf in self.times and not any(replica.reaches(leaf) for replica in self.replicas.values())
            if lost != (leaf in self.unreachable):
                changed = True
                (self.unreachable.add if lost else self.unreachable.discard)(leaf)
        return changed

    def reaches(self, leaf: str) -> bool:
        """Return whether a broker of the node that has a link reaches a leaf."""
        return leaf in self.times and leaf not in self.unreachable

    def knows(self, lost: Replica, leaves: Iterable[str]) -> bool:
        """Return whether live replicas know each of the leaves at its time in a lost replica, or at a later one."""
        live = [replica.times for replica in self.replicas.values() if replica.lost_ms is None]
        return all(any(times.get(leaf, -1) >= lost.times.get(leaf, 0) for times in live) for leaf in leaves)

    def _latest(self, leaf: str) -> list[Replica]:
        """Return the replicas that have the latest time of a leaf."""
        latest = self.times.get(leaf)
        return [replica for replica in self.replicas.values() if replica.times.get(leaf) == latest]

    def _set_interested(self, space: Space, leaf: str) -> bool:
        """Record whether a leaf is interested in a space, and return whether that has changed."""
        interested = any(leaf in replica.interested.get(space, ()) for replica in self._latest(leaf))
        leaves = self.interested.setdefault(space, set())
        changed = interested != (leaf in leaves)
        if changed:
            (leaves.add if interested else leaves.discard)(leaf)
        if not leaves:
            del self.interested[space]
        return changed
