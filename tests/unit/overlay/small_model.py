"""An exhaustive model of a network: two leaves with two updates each, two middle brokers, and a publishing leaf.

Middle brokers exchange nothing, so runs are enumerated in two parts. The first enumerates the runs of one middle
broker: each order of the leaves' updates, with updates lost, one repeated, a full state requested, or a crash of the
broker. The packets that a run sends to the publishing leaf are its trace. The second enumerates the merges of two
traces at the publishing leaf, with at most one packet lost.

In every state, each broker must pass each message that an active subscription wants and that carries its virtual start
time. A broker that passes this message also passes those with later vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, permutations, product
from typing import Any, NamedTuple

from broker.overlay.aggregation import Aggregation
from broker.overlay.interest import Interest
from broker.overlay.packets import Resync
from broker.routing.cover_index import covers
from broker.routing.pattern import parse_pattern
from tests.unit.overlay.network import SPACE, wants

Batch = tuple[Sequence[str], Sequence[str]]
"""The patterns that a leaf binds and unbinds; a pattern is also the name of its binding."""

Op = tuple[Any, ...]
Trace = tuple[int, ...]
"""The numbers of the events that a middle broker causes at the publishing leaf."""

NODES = ("one", "two")
LEAVES = ("sb1", "sb2")
BROKERS = ("b1", "b2")

History = tuple[tuple[int, int], ...]
"""The events at the publishing leaf, as pairs of the middle broker's index and the event's number."""


class Filtered(AssertionError):
    """A broker filters a message that an active subscription wants."""


class Scenario(NamedTuple):
    """The first bindings of each leaf, and its two updates."""

    name: str
    first: tuple[Sequence[str], Sequence[str]]
    updates: tuple[tuple[Batch, Batch], tuple[Batch, Batch]]


class Event(NamedTuple):
    """A packet to the publishing leaf, or None for a crash, and how many updates of each leaf preceded it."""

    packet: Any
    seen: tuple[int, int]


class LeafFeed:
    """A leaf's output on links that start after 0, 1 or 2 updates, and its subscriptions with start times."""

    def __init__(self, place: int, first: Sequence[str], updates: Sequence[Batch]) -> None:
        leaf = Interest(NODES[place], ("middle",), Aggregation.COVERING, 100, LEAVES[place])
        self.links: list[dict[int, list[Any]]] = []
        self.active: list[dict[str, int]] = []
        self.times: list[int] = []
        bound: set[str] = set()
        for progress, (added, removed) in enumerate([(first, ()), *updates]):
            leaf.change([(text, wants(text), False) for text in added], removed)
            bound = bound - set(removed) | set(added)
            self.active.append({text: leaf.subscriptions.start(text) for text in bound})
            self.times.append(leaf.time(LEAVES[place]))
            self._collect(leaf, progress)
            self.links.append({})
            leaf.connected("middle", str(progress), 1)
            self._collect(leaf, progress)

    def _collect(self, leaf: Any, progress: int) -> None:
        for _, link, packet in leaf.take_output(0):
            self.links[int(link)].setdefault(progress, []).append(packet)


class SmallModel:
    """All runs of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.feeds = [LeafFeed(place, scenario.first[place], scenario.updates[place]) for place in range(2)]
        self._events: list[Event] = []
        self._numbers: dict[str, int] = {}  # of events, by their repr
        self._states: dict[Any, int] = {}  # of the publishing leaf, by fingerprint
        self._publishers: list[Any] = []
        self._histories: list[History] = []
        self._moves: dict[tuple[int, int, int], int] = {}
        self._checked: set[Any] = set()
        self._known: set[Any] = set()

    # ---- the middle broker -------------------------------------------------------------------------------------------

    def middle_ops(self, *, in_order: bool) -> Iterator[tuple[Op, ...]]:
        """Yield the runs of a middle broker: orders of updates, some lost, with at most one other fault.

        `in_order` omits runs in which updates of one leaf overtake each other or more than one is lost.
        """
        updates = [(place, progress) for place in range(2) for progress in (1, 2)]
        orders = [order for size in range(5) for some in combinations(updates, size) for order in permutations(some)]
        for order in orders:
            overtaken = any(one[0] == other[0] and one > other for one, other in combinations(order, 2))
            if in_order and (overtaken or len(order) < 3):
                continue
            yield order
            for at in range(len(order) + 1):
                yield (*order[:at], ("ask",), *order[at:])
                for update in updates:
                    yield (*order[:at], ("again", *update), *order[at:])
            reached = [max([0, *(progress for leaf, progress in order if leaf == place)]) for place in range(2)]
            for begins in product(range(reached[0], 3), range(reached[1], 3)):
                feeds = [[(place, progress) for progress in range(begins[place], 3)] for place in range(2)]
                for merged in merges(*feeds):
                    yield (*order, ("crash", *begins), *merged)

    def plain_ops(self) -> Iterator[tuple[Op, ...]]:
        """Yield the runs without faults."""
        yield from merges([(0, 1), (0, 2)], [(1, 1), (1, 2)])

    def traces(self, runs: Iterable[tuple[Op, ...]]) -> list[Trace]:
        """Return the distinct traces of a middle broker's runs."""
        return list(dict.fromkeys(self.run_middle(ops) for ops in runs))

    def run_middle(self, ops: Iterable[Op]) -> Trace:
        """Run a middle broker, check it after each step, and return its trace."""
        seen, links = [0, 0], [0, 0]
        middle = self._middle()
        trace: list[Event] = []
        for op in [(0, 0), (1, 0), *ops]:
            if op[0] == "crash":
                middle, links = self._middle(), [op[1], op[2]]
                seen = [max(seen[0], op[1]), max(seen[1], op[2])]
                trace.append(Event(None, (seen[0], seen[1])))
            elif op[0] == "ask":
                middle.received("pb", "pb", Resync(), 0)
            else:
                place, progress = op[-2:]
                link = self.feeds[place].links[links[place]]
                seen[place] = max(seen[place], progress)
                for packet in link.get(progress, ()):
                    middle.received(NODES[place], LEAVES[place], packet, 0)
            for node, _, packet in middle.take_output(0):
                if node == "pb":
                    trace.append(Event(packet, (seen[0], seen[1])))
            for place, node in enumerate(NODES):
                self._check(middle, node, place, seen)
        return tuple(self._number(event) for event in trace)

    def _number(self, event: Event) -> int:
        number = self._numbers.setdefault(repr(event), len(self._events))
        if number == len(self._events):
            self._events.append(event)
        return number

    def _middle(self) -> Any:
        middle = Interest("middle", ("pb", *NODES), Aggregation.COVERING, 100)
        for node, broker in (("pb", "pb"), *zip(NODES, LEAVES, strict=True)):
            middle.connected(node, broker, 1)
        return middle

    # ---- the publishing leaf -----------------------------------------------------------------------------------------

    def run_publisher(self, one: Trace, other: Trace) -> None:
        """Check all merges of two traces at the publishing leaf, with at most one packet lost."""
        known = self._reach(())
        pending = [(known, one, other, (0, 0), False)]
        while pending:
            state = pending.pop()
            if state in self._known:
                continue
            self._known.add(state)
            known, one, other, seen, lost = state
            if (known, seen) not in self._checked:
                self._checked.add((known, seen))
                for place in range(2):
                    self._check(self._publishers[known], "middle", place, seen)
            for place, trace in enumerate((one, other)):
                if not trace:
                    continue
                event = self._events[trace[0]]
                rest = (trace[1:], other) if place == 0 else (one, trace[1:])
                reached = (max(seen[0], event.seen[0]), max(seen[1], event.seen[1]))
                pending.append((self._move(known, place, trace[0]), *rest, reached, lost))
                if event.packet is not None and not lost:
                    pending.append((known, *rest, reached, True))

    @property
    def states(self) -> int:
        """Return the number of checked states of the publishing leaf and packets in flight."""
        return len(self._known)

    def _move(self, known: int, place: int, number: int) -> int:
        """Return the state of the publishing leaf after one more event."""
        move = (known, place, number)
        if move not in self._moves:
            self._moves[move] = self._reach((*self._histories[known], (place, number)))
        return self._moves[move]

    def _reach(self, history: History) -> int:
        """Return the state of the publishing leaf after a history; replaying is cheaper than copying the leaf."""
        publisher = Interest("pb", ("middle",), Aggregation.COVERING, 100, "pb")
        for broker in BROKERS:
            publisher.connected("middle", broker, 1)
        for place, number in history:
            packet = self._events[number].packet
            if packet is None:
                publisher.lost("middle", BROKERS[place], 0)
                publisher.connected("middle", BROKERS[place], 2)
            else:
                publisher.received("middle", BROKERS[place], packet, 0)
            publisher.take_output(0)
        known = self._states.setdefault(self._fingerprint(publisher), len(self._publishers))
        if known == len(self._publishers):
            self._publishers.append(publisher)
            self._histories.append(history)
        return known

    def _fingerprint(self, publisher: Any) -> Any:
        return tuple(
            (
                name,
                replica.expected,
                replica.lost_ms,
                replica.session,
                frozenset(replica.patterns.get(SPACE, ())),
                tuple(sorted(replica.times.items())),
            )
            for name, replica in sorted(publisher._directions["middle"].replicas.items())
        )

    # ---- the invariant -----------------------------------------------------------------------------------------------

    def _check(self, interest: Any, node: str, place: int, seen: Sequence[int]) -> None:
        """Check that no message of an active subscription is filtered, for any later progress of the leaf."""
        roots = [parse_pattern(root) for root in interest.roots(node, SPACE)]
        for progress in range(seen[place], 3):
            for text, start in self.feeds[place].active[progress].items():
                if not interest.sufficient(node, SPACE, {LEAVES[place]: start}):
                    continue
                pattern = parse_pattern(text)
                if not any(covers(root, pattern) for root in roots):
                    raise Filtered(f"{LEAVES[place]} wants {text} from {start} on, known: {sorted(map(str, roots))}")


def merges(one: Sequence[Op], other: Sequence[Op]) -> Iterator[tuple[Op, ...]]:
    """Yield the merges of two sequences."""
    for places in combinations(range(len(one) + len(other)), len(one)):
        first, second = iter(one), iter(other)
        yield tuple(next(first) if at in places else next(second) for at in range(len(one) + len(other)))
