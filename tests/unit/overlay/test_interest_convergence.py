"""Random trees of brokers whose links lose, repeat and reorder packets, break, and whose brokers crash."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.overlay.aggregation import Aggregation
from broker.routing.cover_index import covers
from broker.routing.pattern import parse_pattern
from tests.unit.overlay.network import OTHER, SPACE, Network, wants
from tests.unit.overlay.test_aggregation import closure

PATTERNS = ("#", "a.#", "a.*", "a.b", "*.b", "a.b.c", "b", "b.#")
SPACES = (SPACE, OTHER)
WHAT = ["bind", "deliver"] * 3 + ["connect"] * 2 + "unbind deliver settle again lose late cut crash time".split()
Step = tuple[str, int, int, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(WHAT), st.integers(0, 50), st.integers(0, 50), st.integers(0, 3)),
    min_size=10,
    max_size=60,
)


class Life:
    """A network, what the clients of its leaves want, and since when."""

    def __init__(self, parents: list[int], sizes: list[int], aggregations: list[Aggregation]) -> None:
        inner = [f"n{place}" for place in range(len(parents) + 1)]
        edges = [(f"n{place + 1}", inner[parent % (place + 1)]) for place, parent in enumerate(parents)]
        brokers = {node: tuple(f"{node}b{place}" for place in range(sizes[at])) for at, node in enumerate(inner)}
        for at, node in enumerate(inner):  # each inner node has a leaf, and the first a second one
            for leaf in [f"leaf{at}"] if at else ["leaf0", "leaf00"]:
                brokers[leaf] = (leaf,)
                edges.append((node, leaf))
        names = [broker for names in brokers.values() for broker in names]
        kinds = {name: aggregations[at % len(aggregations)] for at, name in enumerate(names)}
        self.network = Network(brokers, edges, kinds)
        self.bindings: dict[str, dict[str, tuple[str, int, int]]] = {leaf: {} for leaf in self.network.leaves}
        for leaf in self.network.leaves:
            self.network.change(leaf)

    def step(self, step: Step) -> None:
        """Let one thing happen."""
        what, one, two, three = step
        network = self.network
        wires = [pair for pair, wire in sorted(network.wires.items()) if wire]
        if what in ("bind", "unbind"):
            leaf = network.leaves[one % len(network.leaves)]
            name = f"q{three}"
            if what == "unbind":
                self.bindings[leaf].pop(name, None)
                network.change(leaf, [], [name])
            else:
                space, text = two % 2, PATTERNS[two % len(PATTERNS)]
                network.change(leaf, [(name, wants(text, SPACES[space]), three == 0)])
                self.bindings[leaf][name] = (text, space, network.interests[leaf].subscriptions.start(name))
        elif what == "settle":
            network.settle()
        elif what in ("deliver", "again", "lose", "late") and wires:
            pair = wires[one % len(wires)]
            if what == "late":
                network.wires[pair].rotate(-1)
            else:
                network.deliver(*pair, again=what == "again", lost=what == "lose")
        elif what == "time":
            network.pass_time(1000 * two)
        elif what in ("cut", "connect"):
            pairs = network.pairs()
            (network.cut if what == "cut" else network.connect)(*pairs[one % len(pairs)])
        elif what == "crash":
            names = list(network.node_of)
            self.crash(names[one % len(names)])

    def crash(self, broker: str) -> None:
        """Crash a broker; a leaf recovers its durable bindings with their start times."""
        self.network.crash(broker)
        if broker in self.bindings:
            durable = {name: binding for name, binding in self.bindings[broker].items() if name == "q0"}
            self.bindings[broker] = durable
            self.network.change(
                broker, [(name, wants(text, SPACES[space]), True) for name, (text, space, _) in durable.items()]
            )

    def heal(self) -> None:
        """Connect all brokers, and let everything that is under way arrive."""
        for pair in self.network.pairs():
            if pair not in self.network.links:
                self.network.connect(*pair)
        for _ in range(4):
            self.network.settle()
            self.network.pass_time(31_000)
        self.network.settle()

    def check_claims(self) -> None:
        """No broker claims a time of a leaf without the patterns of the subscriptions that began by then."""
        for name, interest in self.network.interests.items():
            for node in self.network.neighbours[self.network.node_of[name]]:
                for leaf in interest.leaves(node) & self.bindings.keys():
                    for text, space, start in self.bindings[leaf].values():
                        if start <= interest.time(leaf):
                            pattern = parse_pattern(text)
                            roots = interest.roots(node, SPACES[space])
                            assert any(covers(parse_pattern(root), pattern) for root in roots), (name, leaf, text)

    def check_reach(self) -> None:
        """At rest a way to a leaf is known over a broker exactly if there is one."""
        network = self.network
        for name, interest in network.interests.items():
            for node in network.neighbours[network.node_of[name]]:
                for broker in network.brokers[node]:
                    leaves = interest.leaves(node) if (min(name, broker), max(name, broker)) in network.links else ()
                    found = {leaf for leaf in leaves if self.leads(broker, network.node_of[name], leaf)}
                    sender, here = network.interests[broker], network.node_of[name]
                    nodes = {node, *network.neighbours[node]} - {here}
                    known = {leaf for far in nodes for leaf in sender.leaves(far)}
                    assert interest.reachable(node, broker) == found & known, (name, broker)

    def leads(self, broker: str, before: str, leaf: str) -> bool:
        """Return whether links lead from a broker to a leaf without going back to a node."""
        here = self.network.node_of[broker]
        if broker == leaf:
            return True
        return any(
            (min(broker, other), max(broker, other)) in self.network.links and self.leads(other, here, leaf)
            for node in self.network.neighbours[here]
            if node != before and leaf in self.behind(here, node)
            for other in self.network.brokers[node]
        )

    def behind(self, node: str, via: str) -> list[str]:
        """Return the leaves that are reached from a node through one of its neighbours."""
        found, pending = [], [(node, via)]
        while pending:
            before, here = pending.pop()
            found += [broker for broker in self.network.brokers[here] if self.network.is_leaf(broker)]
            pending += [(here, behind) for behind in self.network.neighbours[here] if behind != before]
        return found

    def check_tables(self, *, exact: bool) -> None:
        """Each broker has announced the covering closure of what is behind it, and all know the latest times."""
        for name, interest in self.network.interests.items():
            own = self.network.node_of[name]
            for node in self.network.neighbours[own]:
                leaves = self.behind(own, node)
                assert interest.leaves(node) == set(leaves)
                for broker in self.network.brokers[node]:
                    assert interest.reachable(node, broker) == set(leaves)
                for place, space in enumerate(SPACES):
                    wanted = {
                        leaf: {text for text, at, _ in self.bindings[leaf].values() if at == place} for leaf in leaves
                    }
                    patterns = {text for texts in wanted.values() for text in texts}
                    known = set(interest.roots(node, space))
                    assert closure(known) == closure(patterns)
                    assert known == closure(patterns) if exact else known <= patterns
                    for broker in self.network.brokers[node]:
                        assert interest.interested(node, broker, space) == {leaf for leaf in leaves if wanted[leaf]}
                    times = {leaf: self.network.interests[leaf].time(leaf) for leaf in leaves if wanted[leaf]}
                    assert interest.vector(node, space) == times
                    assert interest.sufficient(node, space, times)


TREES = st.tuples(st.lists(st.integers(0, 5), max_size=2), st.lists(st.integers(1, 2), min_size=3, max_size=3))


@settings(max_examples=60)
@given(tree=TREES, steps=STEPS)
def test_tables_converge_to_the_covering_closure(tree: tuple[list[int], list[int]], steps: list[Step]) -> None:
    """After any interleaving, once the links are whole again; and before that no one ever claims too much."""
    life = Life(*tree, [Aggregation.COVERING])
    for step in steps:
        life.step(step)
        life.check_claims()
    for _ in range(3):
        life.network.settle()
        life.network.pass_time(31_000)
    life.network.settle()
    life.check_reach()
    life.heal()
    life.check_claims()
    life.check_tables(exact=True)


@settings(max_examples=60)
@given(tree=TREES, steps=STEPS, aggregations=st.lists(st.sampled_from(Aggregation), min_size=2, max_size=5))
def test_brokers_with_different_aggregation_work_together(
    tree: tuple[list[int], list[int]], steps: list[Step], aggregations: list[Aggregation]
) -> None:
    """Their announcements differ, but match the same keys."""
    life = Life(*tree, aggregations)
    for step in steps:
        life.step(step)
        life.check_claims()
    life.heal()
    life.check_tables(exact=False)
