"""A leaf's bindings and their virtual start times."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.overlay.aggregation import Aggregation
from broker.overlay.packets import Conjunction, Space
from broker.overlay.subscriptions import COVERING_VISITS_MAX, BindingBatch, ConjunctionGraph, Subscriptions
from broker.overlay.virtual_time import VirtualTime
from broker.routing.covering import covers
from broker.routing.pattern import parse_pattern

SPACE = Space("/", "orders")


class Leaf:
    """Subscriptions that end a virtual time with each batch that touched a space, as a leaf broker does."""

    def __init__(self, aggregation: Aggregation = Aggregation.COVERING) -> None:
        self.time = VirtualTime()
        self.subscriptions = Subscriptions(aggregation, self.time)
        self.roots: set[str] = set()

    def change(self, added: Iterable[tuple[str, str]] = (), removed: Iterable[str] = ()) -> BindingBatch:
        """Apply a batch of bindings in the usual space."""
        batch = self.subscriptions.change([(name, Conjunction(SPACE, text), False) for name, text in added], removed)
        if batch.touched:
            self.time.advance()
        for root, came in batch.roots.items():
            assert (root.pattern in self.roots) != came
            (self.roots.add if came else self.roots.discard)(root.pattern)
        return batch


def test_start_times_of_the_papers_first_example() -> None:
    """A conjunction that is covered starts with what covers it, the others with the current time."""
    leaf = Leaf()
    leaf.change([("s1", "nyse.ibm.#")])
    leaf.change([("s2a", "nyse.ibm.high"), ("s2b", "nyse.t.high"), ("s2c", "nasdaq.msft")])
    starts = [leaf.subscriptions.start(name) for name in ("s1", "s2a", "s2b", "s2c")]
    assert (starts, leaf.time.now) == ([1, 1, 2, 2], 3)
    assert leaf.roots == {"nyse.ibm.#", "nyse.t.high", "nasdaq.msft"}


def test_a_conjunction_keeps_its_start_when_what_covers_it_leaves() -> None:
    """Brokers hold the one or the other from then on."""
    leaf = Leaf()
    leaf.change([("wide", "a.#")])
    leaf.change([("other", "b")])
    leaf.change([("narrow", "a.b")], ["wide"])
    assert leaf.subscriptions.start("narrow") == 1
    assert leaf.roots == {"b", "a.b"}
    leaf.change([("again", "a.b")])
    assert (leaf.subscriptions.start("again"), leaf.time.now) == (1, 4)


def test_a_binding_that_is_replaced_in_one_batch_does_not_wait_for_ever() -> None:
    """Removed first, the new one would start at a time that no update announces: the trap of one order in a batch."""
    leaf = Leaf()
    leaf.change([("first", "a")])
    batch = leaf.change([("second", "a")], ["first"])
    assert not batch.roots
    assert not batch.touched
    assert leaf.subscriptions.start("second") == 1 < leaf.time.now
    leaf.change([("second", "a")], ["second"])  # the same name, unbound and bound again
    assert leaf.subscriptions.start("second") == 1
    assert leaf.roots == {"a"}


def test_the_earliest_of_all_coverers_counts_not_only_of_the_root() -> None:
    """A root that came later than an inner conjunction does not delay what both cover."""
    leaf = Leaf()
    leaf.change([("inner", "a.b.#")])
    leaf.change([("root", "#")])
    leaf.change([("new", "a.b.c")])
    assert leaf.subscriptions.start("new") == 1


def test_without_aggregation_every_change_ends_a_time() -> None:
    """Equal bindings start at their own times then."""
    leaf = Leaf(Aggregation.NONE)
    leaf.change([("one", "a")])
    leaf.change([("two", "a")])
    leaf.change([], ["one"])
    assert (leaf.subscriptions.start("two"), leaf.time.now, leaf.roots) == (2, 4, {"a"})


def test_a_binding_declared_again_changes_nothing() -> None:
    """Neither its start time nor the virtual time."""
    for aggregation in Aggregation:
        leaf = Leaf(aggregation)
        leaf.change([("one", "a")])
        assert leaf.change([("one", "a")]) == BindingBatch()
        assert leaf.subscriptions.start("one") == 1


def test_a_binding_that_is_not_there_can_be_removed() -> None:
    """Nothing is counted below nothing."""
    leaf = Leaf()
    leaf.change([("one", "a")])
    assert leaf.change([], ["two", "two"]) == BindingBatch()
    leaf.change([], ["one", "one"])
    assert leaf.roots == set()
    assert not list(leaf.subscriptions.spaces)


def test_durability_is_told_of_the_first_and_the_last_durable_binding() -> None:
    """A flag that changes without a root is a change too."""
    subscriptions = Subscriptions(Aggregation.COVERING, VirtualTime())
    binding = Conjunction(SPACE, "a")
    assert not subscriptions.change([("one", binding, False)], ()).durable
    assert subscriptions.change([("one", binding, True)], ()).durable
    assert not subscriptions.change([("two", binding, True)], ["one"]).durable
    assert subscriptions.change([], ["two"]).durable
    assert not subscriptions.durable


PATTERNS = st.sampled_from(["#", "a.#", "a.*", "a.b", "*.b", "a.b.c", "a.*.c", "b", ""])
NAMES = st.sampled_from("qrstuv")
CHANGES = st.tuples(st.lists(st.tuples(NAMES, PATTERNS), max_size=3), st.lists(NAMES, max_size=3))


@given(aggregation=st.sampled_from(Aggregation), batches=st.lists(CHANGES, max_size=12))
def test_start_times_and_roots_follow_the_rules(
    aggregation: Aggregation, batches: list[tuple[list[tuple[str, str]], list[str]]]
) -> None:
    """A start time is announced with its batch and that of the earliest coverer; the roots are the closure."""
    leaf = Leaf(aggregation)
    held: dict[str, str] = {}
    starts: dict[str, int] = {}
    for added, removed in batches:
        before = {text: min(starts[name] for name in held if held[name] == text) for text in held.values()}
        now = leaf.time.now
        leaf.change(added, removed)
        latest = dict(added)
        for name in set(removed) - latest.keys():
            held.pop(name, None)
        fresh = {name for name, text in latest.items() if name in removed or held.get(name) != text}
        held |= latest
        starts = {name: leaf.subscriptions.start(name) for name in held}
        assert all(start < leaf.time.now for start in starts.values())
        for name in fresh if aggregation is Aggregation.COVERING else ():
            pattern = parse_pattern(held[name])
            coverers = [before[text] for text in before if covers(parse_pattern(text), pattern)]
            assert starts[name] == min(coverers, default=now)
        roots = set(held.values())
        if aggregation is Aggregation.COVERING:
            roots = {
                text
                for text in roots
                if not any(other != text and covers(parse_pattern(other), parse_pattern(text)) for other in roots)
            }
        assert leaf.roots == roots


def test_hostile_patterns_do_not_make_the_search_for_coverers_long() -> None:
    """A search gives up after a number of places and takes the start of the root, which is later and as right."""
    graph = ConjunctionGraph(Aggregation.COVERING)
    texts = ["".join(f"{'*' if place >> bit & 1 else 'a'}." for bit in range(11))[:-1] for place in range(2048)]
    before = 0
    for name, text in enumerate(sorted(texts, key=lambda text: -text.count("*"))):
        graph.hold(text, str(name), graph.start(text, 7))
        assert graph.visited - before <= 4 * COVERING_VISITS_MAX
        before = graph.visited
    assert [pattern.text for pattern in graph.roots()] == [".".join("*" * 11)]


@pytest.mark.slow
def test_many_bindings_take_steps_in_proportion() -> None:
    """Ten times as many bindings visit about ten times as many places, added and removed."""
    visits = []
    for number in (1_500, 15_000):
        leaf = Leaf()
        bindings = [
            (f"q{place}", f"orders.{place % 97}.{place}.{'*' if place % 3 else 'eu'}") for place in range(number)
        ]
        for at in range(0, number, 1000):
            leaf.change(bindings[at : at + 1000])
        graph = leaf.subscriptions._graphs[SPACE]
        assert len(leaf.roots) == number
        for at in range(0, number, 1000):
            leaf.change([], [name for name, _ in bindings[at : at + 1000]])
        visits.append(graph.visited + graph._roots.visited)  # type: ignore[union-attr]  # the covering kind
        assert not leaf.roots
    assert visits[1] < 15 * visits[0]
