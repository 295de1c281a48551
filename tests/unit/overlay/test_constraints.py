"""The paper's scheme: what it must reject, and what it costs."""

from __future__ import annotations

from broker.overlay.aggregation import Aggregation
from broker.overlay.constraints import ConstraintInterest, FullState, Increment, Lagging
from tests.unit.overlay.network import SPACE, Network, wants

FIGURE = {"pb": ("pb",), "middle": ("b1", "b2"), "one": ("sb1",), "two": ("sb2",)}
EDGES = [("pb", "middle"), ("middle", "one"), ("middle", "two")]


def make(**first: str) -> Network:
    """Return a network at rest in which each leaf has its first batch."""
    network = Network(FIGURE, EDGES, scheme=ConstraintInterest)
    for leaf in ("pb", "sb1", "sb2"):
        text = first.get(leaf)
        network.change(leaf, [("first", wants(text), False)] if text else [])
    network.settle()
    return network


def test_increments_that_siblings_merged_at_once_reject_each_other() -> None:
    """Read as "at least", the constraint would let the second one take away what hides the first one's pattern."""
    network = make(sb1="nyse.ibm", sb2="nyse.*")
    publisher = network.interests["pb"]
    network.change("sb1", [("t", wants("nyse.t"), False)])
    network.change("sb2", [], ["first"])
    network.deliver("sb1", "b1")  # covered there: nothing to announce but the time
    network.deliver("sb2", "b2")  # exposes nyse.ibm only
    network.deliver("b1", "pb")
    assert publisher.time("sb1") == 2
    network.deliver("b2", "pb")
    assert publisher.time("sb2") == 1
    assert publisher.rejected == 1
    assert publisher.matches("middle", SPACE, "nyse.t")
    network.settle()
    assert set(publisher.roots("middle", SPACE)) == {"nyse.ibm", "nyse.t"}
    assert publisher.vector("middle", SPACE) == {"sb1": 2, "sb2": 2}


def test_a_whole_constraint_has_zero_for_the_leaves_that_its_sender_does_not_know() -> None:
    """A broker that restarted does not know that the other leaf wants the pattern, too, which its increment removes."""
    network = make(sb1="a", sb2="a")
    publisher = network.interests["pb"]
    network.crash("b1")
    network.connect("b1", "pb")
    network.connect("b1", "sb1")
    network.settle()
    network.change("sb1", [], ["first"])
    network.deliver("sb1", "b1")
    network.deliver("b1", "pb")
    assert publisher.matches("middle", SPACE, "a")
    network.settle()
    assert publisher.matches("middle", SPACE, "a")


def test_what_was_hidden_and_withdrawn_elsewhere_stays_until_a_full_state() -> None:
    """b2 announced the narrow pattern before it knew the wide one; b1 never tells that it is gone."""
    network = make()
    publisher = network.interests["pb"]
    network.change("sb1", [("wide", wants("a.*"), False)])
    network.change("sb2", [("narrow", wants("a.b"), False)])
    network.deliver("sb1", "b1")
    network.deliver("b1", "pb")
    network.deliver("sb2", "b2")
    network.deliver("b2", "pb")
    network.settle()
    network.change("sb2", [], ["narrow"])
    network.settle()
    assert set(publisher.roots("middle", SPACE)) == {"a.*", "a.b"}
    publisher.lags("middle", "b1")
    network.collect("pb")
    network.settle()
    assert set(publisher.roots("middle", SPACE)) == {"a.*"}


def test_a_lost_increment_is_made_up_for_by_the_full_state_that_the_next_one_asks_for() -> None:
    """The constraint of the second exceeds what the broker knows."""
    network = make()
    network.change("sb1", [("x", wants("x"), False)])
    network.deliver("sb1", "b1", lost=True)
    network.change("sb1", [("y", wants("y"), False)])
    network.deliver("sb1", "b1")
    assert network.wires["b1", "sb1"][-1] == Lagging()
    assert not network.interests["b1"].roots("one", SPACE)
    network.settle()
    assert set(network.interests["b1"].roots("one", SPACE)) == {"x", "y"}


def test_a_leaf_repeats_its_state_until_messages_have_its_time() -> None:
    """Every broker passes the refresh on once, so that a publishing leaf that lacks an increment gets it."""
    network = make()
    network.change("sb1", [("x", wants("x"), False)])
    network.deliver("sb1", "b1")
    network.deliver("sb1", "b2")
    for middle in ("b1", "b2"):
        network.deliver(middle, "pb", lost=True)
    network.settle()
    publisher = network.interests["pb"]
    assert not publisher.roots("middle", SPACE)
    network.pass_time(31_000)
    network.settle()
    assert set(publisher.roots("middle", SPACE)) == {"x"}
    network.interests["sb1"].observed(publisher.time("sb1"), network.now_ms)
    network.interests["sb2"].observed(publisher.time("sb2"), network.now_ms)
    network.interests["pb"].observed(1, network.now_ms)
    network.pass_time(100_000)
    assert not any(network.wires.values())


def test_full_states_replace_join_or_are_dropped() -> None:
    """As their vector is as late as what is known, neither later nor earlier, or earlier."""
    interest = ConstraintInterest("here", ("there",), Aggregation.COVERING, 100)
    interest.connected("there", "b", 1)
    interest.received("there", "b", FullState((wants("a"),), {"one": 2, "two": 1}), 0)
    interest.received("there", "b", FullState((wants("b"),), {"one": 1, "two": 3}), 0)
    assert set(interest.roots("there", SPACE)) == {"a", "b"}
    assert interest.vector("there", SPACE) == {"one": 2, "two": 3}
    interest.received("there", "b", FullState((wants("c"),), {"one": 2, "two": 2}), 0)
    assert set(interest.roots("there", SPACE)) == {"a", "b"}
    interest.received("there", "b", FullState((wants("d"),), {"one": 2, "two": 3}), 0)
    assert set(interest.roots("there", SPACE)) == {"d"}
    interest.received("there", "b", FullState((), {"one": 3}), 0)
    assert set(interest.roots("there", SPACE)) == {"d"}
    assert interest.vector("there", SPACE) == {"one": 3, "two": 3}


def test_a_repeated_increment_changes_nothing() -> None:
    """It is known by its time, and no reason to ask for anything."""
    interest = ConstraintInterest("here", ("there",), Aggregation.COVERING, 100)
    interest.connected("there", "b", 1)
    interest.received("there", "b", FullState((), {"one": 1}), 0)
    interest.take_output(0)
    increment = Increment("one", 2, (wants("a"),), (), {"one": 1}, whole=False, touched=(SPACE,))
    for _ in range(3):
        interest.received("there", "b", increment, 0)
    assert (interest.rejected, interest.take_output(0)) == (0, [])
    assert interest.take_touched() == {SPACE}


def test_a_tree_node_that_is_lost_withdraws_what_it_wanted_after_a_while() -> None:
    """Its last broker decides."""
    network = make(sb1="a")
    network.crash("b1")
    network.pass_time(40_000)
    assert network.interests["pb"].matches("middle", SPACE, "a")
    network.crash("b2")
    network.pass_time(29_999)
    assert network.interests["pb"].matches("middle", SPACE, "a")
    network.pass_time(1)
    assert not network.interests["pb"].matches("middle", SPACE, "a")
    assert network.interests["pb"].direction("sb1") is None
