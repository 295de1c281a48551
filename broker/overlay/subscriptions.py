"""The subscriptions of a leaf broker, each with the virtual time from which its messages are complete."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from broker.overlay.aggregation import Aggregation, root_set
from broker.overlay.conjunction import pattern_of
from broker.overlay.packets import Conjunction, Space
from broker.overlay.virtual_time import VirtualTime
from broker.routing.cover_index import CoverIndex
from broker.routing.cover_set import RootDiff
from broker.routing.pattern import Pattern

COVERING_VISITS_MAX: Final = 256
"""How many places of the index one search for the coverers of a pattern may visit; hostile patterns have millions."""


@dataclass(slots=True)
class BindingBatch:
    """What a batch of changes did to the roots: each root that came (true) or went (false), and the spaces touched.

    A batch without a touched space changes nothing for other brokers, and does not end a virtual time.
    """

    roots: dict[Conjunction, bool] = field(default_factory=dict)
    touched: set[Space] = field(default_factory=set)
    durable: bool = False  # whether the leaf has got its first durable binding or lost its last

    def note(self, space: Space, change: RootDiff) -> None:
        """Add a change of roots; a root that comes and goes within the batch leaves nothing."""
        for pattern in change.added:
            self._turn(Conjunction(space, pattern.text), came=True)
        for pattern in change.removed:
            self._turn(Conjunction(space, pattern.text), came=False)

    def _turn(self, root: Conjunction, *, came: bool) -> None:
        if self.roots.pop(root, came) == came:
            self.roots[root] = came


class ConjunctionGraph:
    """The conjunctions of one space at a leaf broker by covering, each with its virtual start time.

    Invariant: a conjunction has no later start time than any that covers it.
    Source: the Gryphon paper, section 3.3.
    """

    __slots__ = ("_aggregation", "_holders", "_index", "_roots", "_starts")

    def __init__(self, aggregation: Aggregation) -> None:
        self._aggregation = aggregation
        self._holders: dict[str, set[str]] = {}  # pattern -> bindings
        self._starts: dict[str, int] = {}
        self._roots = root_set(aggregation)
        self._index = CoverIndex() if aggregation is Aggregation.COVERING else None

    def __len__(self) -> int:
        """Return the number of conjunctions."""
        return len(self._holders)

    @property
    def visited(self) -> int:
        """Return how many places of the index of all conjunctions were visited so far."""
        return 0 if self._index is None else self._index.visited

    def start(self, text: str, now: int) -> int:
        """Return the start time that a binding of a conjunction has if it comes now.

        It is the earliest of the conjunctions that cover it, itself included, and without one the current time. A
        search that would visit too many places ends early; a later start time is right as well.
        """
        if self._aggregation is Aggregation.NONE:
            return now
        known = self._starts.get(text)
        if known is not None:
            return known
        pattern = pattern_of(text)
        root = self._roots.covering(pattern)
        if root is None:
            return now
        start = self._starts[root.text]
        if self._index is not None:
            for coverer in self._index.coverers(pattern, COVERING_VISITS_MAX):
                start = min(start, self._starts[coverer.text])
        return start

    def hold(self, text: str, binding: str, start: int) -> RootDiff:
        """Note that a binding holds a conjunction, and return the change of roots."""
        holders = self._holders.get(text)
        if holders is not None:
            holders.add(binding)
            return RootDiff()
        self._holders[text] = {binding}
        self._starts[text] = start
        pattern = pattern_of(text)
        if self._index is not None:
            self._index.add(pattern)
        return self._roots.add(pattern)

    def release(self, text: str, binding: str) -> RootDiff:
        """Note that a binding does not hold a conjunction any more, and return the change of roots."""
        holders = self._holders[text]
        holders.discard(binding)
        if holders:
            return RootDiff()
        del self._holders[text], self._starts[text]
        pattern = pattern_of(text)
        if self._index is not None:
            self._index.remove(pattern)
        return self._roots.remove(pattern)

    def roots(self) -> Iterable[Pattern]:
        """Return the conjunctions that no other one covers."""
        return self._roots.roots


class Subscriptions:
    """The bindings of a leaf broker and their start times. One batch of changes belongs to one virtual time."""

    __slots__ = ("_aggregation", "_bindings", "_durable", "_graphs", "_time")

    def __init__(self, aggregation: Aggregation, time: VirtualTime) -> None:
        self._aggregation = aggregation
        self._time = time
        self._graphs: dict[Space, ConjunctionGraph] = {}
        self._bindings: dict[str, tuple[Conjunction, int]] = {}
        self._durable: set[str] = set()

    @property
    def durable(self) -> bool:
        """Return whether any binding is durable."""
        return bool(self._durable)

    @property
    def spaces(self) -> Iterable[Space]:
        """Return the spaces that have a binding."""
        return self._graphs

    def start(self, binding: str) -> int:
        """Return the virtual start time of a binding. Raises: KeyError if there is no such binding."""
        return self._bindings[binding][1]

    def change(self, added: Iterable[tuple[str, Conjunction, bool]], removed: Iterable[str]) -> BindingBatch:
        """Apply a batch: bindings with their conjunctions and whether they are durable, and bindings that are gone.

        A binding in both was replaced. All additions get their start times before anything is removed: removed first,
        a conjunction that is replaced by an equal one would leave the roots as they are and yet start at the current
        time, which no update would ever announce.
        """
        batch = BindingBatch()
        was_durable = bool(self._durable)
        gone = {binding for binding in removed if binding in self._bindings}
        old = [(binding, self._bindings[binding][0]) for binding in gone]
        for binding, (conjunction, durable) in {name: (wanted, kept) for name, wanted, kept in added}.items():
            (self._durable.add if durable else self._durable.discard)(binding)
            known = self._bindings.get(binding)
            if binding in gone:
                gone.remove(binding)
            elif known is not None:
                if known[0] == conjunction:
                    continue
                old.append((binding, known[0]))
            self._add(binding, conjunction, batch)
        for binding in gone:
            del self._bindings[binding]
            self._durable.discard(binding)
        for binding, conjunction in old:
            if binding not in self._bindings or self._bindings[binding][0] != conjunction:
                self._release(binding, conjunction, batch)
        batch.touched.update(root.space for root in batch.roots)
        batch.durable = was_durable != bool(self._durable)
        return batch

    def _add(self, binding: str, conjunction: Conjunction, batch: BindingBatch) -> None:
        graph = self._graphs.get(conjunction.space)
        if graph is None:
            graph = self._graphs[conjunction.space] = ConjunctionGraph(self._aggregation)
        start = graph.start(conjunction.pattern, self._time.now)
        self._bindings[binding] = (conjunction, start)
        batch.note(conjunction.space, graph.hold(conjunction.pattern, binding, start))
        if start == self._time.now:
            batch.touched.add(conjunction.space)

    def _release(self, binding: str, conjunction: Conjunction, batch: BindingBatch) -> None:
        graph = self._graphs[conjunction.space]
        batch.note(conjunction.space, graph.release(conjunction.pattern, binding))
        if self._aggregation is Aggregation.NONE:
            batch.touched.add(conjunction.space)
        if not len(graph):
            del self._graphs[conjunction.space]
