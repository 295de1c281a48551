"""A leaf's bindings, their virtual start times and the limits of these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.overlay.aggregation import Aggregation
from broker.overlay.packets import Conjunction, Space
from broker.overlay.subscriptions import BindingBatch, Subscriptions
from broker.overlay.virtual_time import VirtualTime
from broker.routing.cover_index import covers
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


def test_over_one_way_links_a_binding_starts_with_what_is_asked_for() -> None:
    """It has nothing to announce, and counts from the next message that arrives."""
    time = VirtualTime()
    subscriptions = Subscriptions(Aggregation.IDENTICAL, time, joins=True)
    assert subscriptions.change([("one", Conjunction(SPACE, "#"), False)], ()).touched == {SPACE}
    time.advance()
    assert subscriptions.change([("two", Conjunction(SPACE, "#"), False)], ["one"]) == BindingBatch()
    assert subscriptions.start("two") == 1


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
    """A binding starts with its batch, and keeps that time; the roots are the closure. A time ends if a binding
    started, a root changed, or, without aggregation, a binding is gone.
    """
    leaf = Leaf(aggregation)
    held: dict[str, str] = {}
    starts: dict[str, int] = {}
    for added, removed in batches:
        now, roots_before = leaf.time.now, set(leaf.roots)
        batch = leaf.change(added, removed)
        latest = dict(added)
        gone = set(removed) & held.keys()
        for name in set(removed) - latest.keys():
            held.pop(name, None)
        fresh = {name for name, text in latest.items() if name in removed or held.get(name) != text}
        held |= latest
        starts = {name: now if name in fresh else starts[name] for name in held}
        assert starts == {name: leaf.subscriptions.start(name) for name in held}
        ends = fresh or leaf.roots != roots_before or (gone and aggregation is Aggregation.NONE)
        assert leaf.time.now - now == bool(batch.touched) == bool(ends)
        roots = set(held.values())
        if aggregation is Aggregation.COVERING:
            roots = {
                text
                for text in roots
                if not any(other != text and covers(parse_pattern(other), parse_pattern(text)) for other in roots)
            }
        assert leaf.roots == roots


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
        roots = leaf.subscriptions._spaces[SPACE]._roots
        assert len(leaf.roots) == number
        for at in range(0, number, 1000):
            leaf.change([], [name for name, _ in bindings[at : at + 1000]])
        visits.append(roots.visited)
        assert not leaf.roots
    assert visits[1] < 15 * visits[0]


WANTED = Conjunction(SPACE, "#")


class Bindings:
    """The subscriptions of a leaf whose virtual time begins with 1, and ends with each batch."""

    def __init__(self, recovered: Mapping[str, int]) -> None:
        self.time = VirtualTime()
        self.subscriptions = Subscriptions(Aggregation.COVERING, self.time)
        self.subscriptions.recover(recovered)

    def change(self, added: Mapping[str, bool], *removed: str) -> None:
        """Apply a batch: bindings, each durable or not, and bindings that are gone."""
        self.subscriptions.change([(name, WANTED, durable) for name, durable in added.items()], removed)
        self.time.advance()


def test_the_limits_follow_the_bindings() -> None:
    """The lowest and the highest start point of a space."""
    bindings = Bindings({})
    points = bindings.subscriptions
    assert (points.floor(SPACE), points.ceiling(SPACE)) == (None, 0)
    bindings.change({"one": True})
    bindings.change({"two": False})
    assert (points.floor(SPACE), points.ceiling(SPACE), points.start_points()) == (1, 2, {"one": 1})
    bindings.change({}, "one")
    assert (points.floor(SPACE), points.ceiling(SPACE), points.start_points()) == (2, 2, {})
    bindings.change({}, "two")
    assert points.floor(SPACE) is None
    with pytest.raises(KeyError):
        points.start("two")


def test_a_recovered_binding_keeps_its_start_point() -> None:
    """What was published before the crash still comes."""
    bindings = Bindings({"one": 0})
    points = bindings.subscriptions
    bindings.change({"one": True, "new": True})
    assert (points.start("one"), points.start("new"), points.floor(SPACE)) == (0, 1, 0)
    bindings.change({"one": True}, "one")
    assert points.start("one") == 2


def test_changes_of_durable_bindings_are_told_once() -> None:
    """One that goes and comes again has come; a transient one is nobody's business."""
    bindings = Bindings({"one": 0, "lost": 0})
    points = bindings.subscriptions
    bindings.change({"one": True, "two": True, "not": False})
    assert points.take_changes() == ({"one": 0, "two": 1}, set())
    bindings.change({"one": True, "three": True}, "one", "two", "not")
    bindings.change({"two": False}, "three")
    assert points.take_changes() == ({"one": 2}, {"two", "three"})
    assert points.take_changes() == ({}, set())
