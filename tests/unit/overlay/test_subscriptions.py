"""A leaf's bindings and their virtual start times."""

from __future__ import annotations

from collections.abc import Iterable

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


def test_a_binding_starts_when_it_is_made_covered_or_not() -> None:
    """Each batch with a new binding ends a virtual time, also one that changes no root."""
    leaf = Leaf()
    leaf.change([("s1", "nyse.ibm.#")])
    leaf.change([("s2a", "nyse.ibm.high"), ("s2b", "nyse.t.high"), ("s2c", "nasdaq.msft")])
    batch = leaf.change([("s3", "nyse.ibm.high"), ("s4", "nyse.ibm.#")])
    assert (batch.roots, batch.touched) == ({}, {SPACE})
    starts = [leaf.subscriptions.start(name) for name in ("s1", "s2a", "s2b", "s2c", "s3", "s4")]
    assert (starts, leaf.time.now) == ([1, 2, 2, 2, 3, 3], 4)
    assert leaf.roots == {"nyse.ibm.#", "nyse.t.high", "nasdaq.msft"}


def test_a_conjunction_is_announced_when_what_covers_it_leaves() -> None:
    """Brokers hold the one or the other from then on."""
    leaf = Leaf()
    leaf.change([("wide", "a.#")])
    leaf.change([("other", "b")])
    leaf.change([("narrow", "a.b")], ["wide"])
    assert leaf.roots == {"b", "a.b"}
    leaf.change([], ["other"])
    assert leaf.subscriptions.start("narrow") == 3


def test_a_binding_that_is_replaced_in_one_batch_starts_anew() -> None:
    """Unbound and bound again, it gets nothing from before; no root changes, and the time ends all the same."""
    leaf = Leaf()
    leaf.change([("first", "a")])
    batch = leaf.change([("second", "a")], ["first"])
    assert (batch.roots, batch.touched) == ({}, {SPACE})
    assert leaf.subscriptions.start("second") == 2 < leaf.time.now
    leaf.change([("second", "a")], ["second"])
    assert leaf.subscriptions.start("second") == 3
    assert leaf.roots == {"a"}


def test_over_one_way_links_a_binding_starts_with_what_is_asked_for() -> None:
    """It has nothing to announce, and counts from the next message that arrives."""
    time = VirtualTime()
    subscriptions = Subscriptions(Aggregation.IDENTICAL, time, joins=True)
    assert subscriptions.change([("one", Conjunction(SPACE, "#"), False)], ()).touched == {SPACE}
    time.advance()
    assert subscriptions.change([("two", Conjunction(SPACE, "#"), False)], ["one"]) == BindingBatch()
    assert subscriptions.start("two") == 1


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
    """A binding starts with its batch, and that time is announced; the roots are the closure."""
    leaf = Leaf(aggregation)
    held: dict[str, str] = {}
    for added, removed in batches:
        now = leaf.time.now
        leaf.change(added, removed)
        latest = dict(added)
        for name in set(removed) - latest.keys():
            held.pop(name, None)
        fresh = {name for name, text in latest.items() if name in removed or held.get(name) != text}
        held |= latest
        assert all(leaf.subscriptions.start(name) < leaf.time.now for name in held)
        assert {leaf.subscriptions.start(name) for name in fresh} <= {now}
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
