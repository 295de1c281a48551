"""The subscriptions of a leaf broker, and the virtual times from which they receive messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from broker.overlay.aggregation import Aggregation, pattern_of
from broker.overlay.packets import Conjunction, Space
from broker.overlay.virtual_time import VirtualTime
from broker.routing.cover_set import CoverSet, RootDiff


@dataclass(slots=True)
class BindingBatch:
    """The effect of a batch of changes: each root added (true) or removed (false), and the touched spaces.

    A new binding that joins no start point touches its space even if it changes no root, because it receives messages
    only once this virtual time has ended. The first batch and those that touch a space end a virtual time.
    """

    roots: dict[Conjunction, bool] = field(default_factory=dict)
    touched: set[Space] = field(default_factory=set)
    durable: bool = False  # whether the first durable binding of the leaf was added or the last one removed

    def add(self, space: Space, change: RootDiff) -> None:
        """Add a change of roots; the addition and removal of a root within the batch cancel out."""
        for pattern in change.added:
            self._record_root(Conjunction(space, pattern.text), added=True)
        for pattern in change.removed:
            self._record_root(Conjunction(space, pattern.text), added=False)

    def _record_root(self, root: Conjunction, *, added: bool) -> None:
        if self.roots.pop(root, added) == added:
            self.roots[root] = added


class SpaceSubscriptions:
    """The patterns of one space at a leaf broker, each with its bindings, and their roots.

    The roots are the patterns to announce: those that no other covers, or all of them, as `Aggregation` says.
    """

    def __init__(self, aggregation: Aggregation) -> None:
        self._holders: dict[str, set[str]] = {}  # pattern -> bindings
        self._starts: dict[str, int] = {}  # pattern -> virtual time in which its first binding was added here
        self._roots = CoverSet(covers=aggregation is Aggregation.COVERING)
        self._limits: tuple[int, int] | None = None  # cached until the next change

    def __bool__(self) -> bool:
        return bool(self._holders)

    def limits(self, start: Callable[[str], int]) -> tuple[int, int]:
        """Return the lowest and the highest start point of the bindings. Cost: O(bindings) after a change."""
        if self._limits is None:
            points = [start(binding) for holders in self._holders.values() for binding in holders]
            self._limits = min(points), max(points)
        return self._limits

    def start(self, text: str) -> int | None:
        """Return the virtual time in which the first binding with a pattern was added, or None if there is none."""
        return self._starts.get(text)

    def hold(self, text: str, binding: str, start: int) -> RootDiff:
        """Add a binding to a pattern, and return the change of roots."""
        self._limits = None
        holders = self._holders.get(text)
        if holders is not None:
            holders.add(binding)
            return RootDiff()
        self._holders[text] = {binding}
        self._starts[text] = start
        return self._roots.add(pattern_of(text))

    def release(self, text: str, binding: str) -> RootDiff:
        """Remove a binding from a pattern, and return the change of roots."""
        self._limits = None
        holders = self._holders[text]
        holders.discard(binding)
        if holders:
            return RootDiff()
        del self._holders[text], self._starts[text]
        return self._roots.remove(pattern_of(text))


class Subscriptions:
    """The bindings of a leaf broker and their start points, which are virtual times. One batch of changes belongs to
    one virtual time.

    A binding starts at the virtual time in which it was made, covered or not: a message that a publisher matched
    against that time was published after the binding was made. In the Gryphon paper (section 3.3) a covered binding
    starts at the start point of the binding that covers it. That loses nothing either, but delivers earlier messages.

    `joins` is set if all links are one-way. Then a new binding starts when this process added the first binding with
    its pattern.
    """

    def __init__(self, aggregation: Aggregation, time: VirtualTime, *, joins: bool = False) -> None:
        self._aggregation = aggregation
        self._time = time
        self._joins = joins
        self._spaces: dict[Space, SpaceSubscriptions] = {}
        self._bindings: dict[str, tuple[Conjunction, int]] = {}
        self._durable: set[str] = set()
        self._recovered: Mapping[str, int] = {}
        self._new_durable: set[str] = set()
        self._removed_durable: set[str] = set()

    def recover(self, start_points: Mapping[str, int]) -> None:
        """Set the stored start points of the recovered bindings, which are in the first batch."""
        self._recovered = start_points

    @property
    def durable(self) -> bool:
        return bool(self._durable)

    @property
    def spaces(self) -> Iterable[Space]:
        """The spaces that have a binding."""
        return self._spaces

    def start(self, binding: str) -> int:
        """Return the start point of a binding. Raises: KeyError if there is no such binding."""
        return self._bindings[binding][1]

    def change(self, added: Iterable[tuple[str, Conjunction, bool]], removed: Iterable[str]) -> BindingBatch:
        """Apply added and removed bindings; one in both is replaced. Shapes: `added` are (id, conjunction, durable)."""
        batch = BindingBatch()
        was_durable = bool(self._durable)
        ended = {binding for binding in removed if binding in self._bindings}
        old = [(binding, self._bindings[binding][0]) for binding in ended]
        for binding, (conjunction, durable) in {name: (wanted, kept) for name, wanted, kept in added}.items():
            (self._set_durable if durable else self._unset_durable)(binding)
            known = self._bindings.get(binding)
            if binding in ended:
                ended.remove(binding)
            elif known is not None:
                if known[0] == conjunction:
                    continue
                old.append((binding, known[0]))
            self._add(binding, conjunction, batch)
        for binding in ended:
            del self._bindings[binding]
            self._unset_durable(binding)
        self._recovered = {}
        for binding, conjunction in old:
            if binding not in self._bindings or self._bindings[binding][0] != conjunction:
                self._release(binding, conjunction, batch)
        batch.touched.update(root.space for root in batch.roots)
        return replace(batch, durable=was_durable != bool(self._durable))

    def floor(self, space: Space) -> int | None:
        """Return the lowest start point of a space, or None if it has no binding. Cost: O(bindings) after a change."""
        held = self._spaces.get(space)
        return None if held is None else held.limits(self.start)[0]

    def ceiling(self, space: Space) -> int:
        """Return the highest start point of a space, or 0 without bindings. Cost: O(bindings) after a change."""
        held = self._spaces.get(space)
        return 0 if held is None else held.limits(self.start)[1]

    def start_points(self) -> dict[str, int]:
        """Return the start points of the durable bindings. Cost: O(bindings)."""
        return {binding: self.start(binding) for binding in self._durable}

    def take_changes(self) -> tuple[dict[str, int], set[str]]:
        """Return the durable bindings added since the last call, with their start points, and the removed ones."""
        new, self._new_durable = {binding: self.start(binding) for binding in self._new_durable}, set()
        removed, self._removed_durable = self._removed_durable, set()
        return new, removed

    def _set_durable(self, binding: str) -> None:
        self._durable.add(binding)
        self._new_durable.add(binding)
        self._removed_durable.discard(binding)

    def _unset_durable(self, binding: str) -> None:
        """Record that a binding is not durable, or was removed."""
        if binding in self._durable:
            self._durable.remove(binding)
            self._new_durable.discard(binding)
            self._removed_durable.add(binding)

    def _add(self, binding: str, conjunction: Conjunction, batch: BindingBatch) -> None:
        held = self._spaces.get(conjunction.space)
        if held is None:
            held = self._spaces[conjunction.space] = SpaceSubscriptions(self._aggregation)
        known = held.start(conjunction.pattern) if self._joins else None
        start = self._time.now if known is None else known
        self._bindings[binding] = (conjunction, min(start, self._recovered.get(binding, start)))
        batch.add(conjunction.space, held.hold(conjunction.pattern, binding, start))
        if known is None:
            batch.touched.add(conjunction.space)

    def _release(self, binding: str, conjunction: Conjunction, batch: BindingBatch) -> None:
        held = self._spaces[conjunction.space]
        batch.add(conjunction.space, held.release(conjunction.pattern, binding))
        if self._aggregation is Aggregation.NONE:
            batch.touched.add(conjunction.space)
        if not held:
            del self._spaces[conjunction.space]
