"""The paper's scheme: what it must reject, and what it costs."""

from __future__ import annotations

from broker.overlay.aggregation import Aggregation
from tests.overlay.reference.constraints import SUMMARY_MS, ConstraintInterest
from tests.overlay.reference.packets import FullState, Increment, InterestSummary, Lagging
from tests.unit.overlay.network import SPACE, Network, wants

FIGURE = {"pb": ("pb",), "middle": ("b1", "b2"), "one": ("sb1",), "two": ("sb2",)}
EDGES = [("pb", "middle"), ("middle", "one"), ("middle", "two")]


class WithoutSummaries(Network):
    """A network in which brokers hear of what they lack by increments alone, until `summaries` are switched on."""

    summaries = False

    def collect(self, broker: str) -> None:
        """Put what a broker has to send on its links, except summaries."""
        super().collect(broker)
        if self.summaries:
            return
        for (sender, _), wire in self.wires.items():
            if sender == broker and any(isinstance(packet, InterestSummary) for packet in wire):
                packets = [packet for packet in wire if not isinstance(packet, InterestSummary)]
                wire.clear()
                wire.extend(packets)


def make(**first: str) -> WithoutSummaries:
    """Return a network at rest in which each leaf has its first batch."""
    network = WithoutSummaries(FIGURE, EDGES, scheme=ConstraintInterest)
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
    assert publisher.vector("middle", SPACE) == {"sb1": 2}
    assert publisher.time("sb2") == 2


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


def test_what_was_hidden_and_withdrawn_elsewhere_stays_until_an_increment_does_not_fit() -> None:
    """b2 announced the narrow pattern before it knew the wide one; b1 never tells that it is gone."""
    network = make()
    publisher = network.interests["pb"]
    network.change("sb1", [("wide", wants("a.*"), False)])
    network.change("sb2", [("narrow", wants("a.b"), False)])
    for way in ("sb1 b1", "b1 pb", "sb2 b2", "b2 pb"):
        network.deliver(*way.split())
    network.settle()
    assert set(publisher.roots("middle", SPACE)) == {"a.*", "a.b"}
    network.change("sb2", [], ["narrow"])
    network.settle()
    assert publisher.rejected
    assert set(publisher.roots("middle", SPACE)) == {"a.*"}


def test_two_states_of_one_vector_may_differ_and_a_merged_increment_fits_one_of_them_alone() -> None:
    """A counter-example to the paper's constraint: it names the vector, which is the same at both siblings.

    a1 hears of y's narrow pattern before it knows that it is covered, and keeps it when nobody wants it any more. So it
    tells nothing when z wants that pattern. The publishing leaf, which learned from a2 that the wide one is gone, would
    take that for complete.
    """
    brokers = {"pb": ("pb",), "top": ("a1", "a2"), "low": ("c1", "c2"), "x": ("x",), "y": ("y",), "z": ("z",)}
    edges = [("pb", "top"), ("top", "z"), ("top", "low"), ("low", "x"), ("low", "y")]
    network = WithoutSummaries(brokers, edges, scheme=ConstraintInterest)
    for leaf in ("pb", "x", "y", "z"):
        network.change(leaf)
    network.settle()
    network.change("x", [("wide", wants("a.*"), False)])
    network.change("y", [("narrow", wants("a.b"), False)])
    for way in ("x c1", "c1 a1", "c1 a2", "y c1", "c1 a2", "y c2", "c2 a1"):
        network.deliver(*way.split())
    network.settle()
    assert network.interests["a1"].vector("low", SPACE) == network.interests["a2"].vector("low", SPACE)
    assert set(network.interests["a1"].roots("low", SPACE)) == {"a.*", "a.b"}
    assert set(network.interests["a2"].roots("low", SPACE)) == {"a.*"}
    network.change("y", [], ["narrow"])
    network.settle()
    network.change("x", [], ["wide"])
    for way in ("x c1", "c1 a2", "a2 pb", "c1 a1", "a1 pb"):
        network.deliver(*way.split())
    network.change("z", [("narrow", wants("a.b"), False)])
    network.deliver("z", "a1")
    network.deliver("a1", "pb")
    publisher = network.interests["pb"]
    assert publisher.matches("top", SPACE, "a.b") or publisher.time("z") < network.interests["z"].time("z")
    network.settle()
    assert set(publisher.roots("top", SPACE)) == {"a.b"}


def test_a_summary_tells_of_a_lost_increment_and_of_a_pattern_that_nobody_announces() -> None:
    """Within a second, though nothing else is said, and no more is asked for then."""
    network = make()
    network.change("sb1", [("wide", wants("a.*"), False)])
    network.change("sb2", [("narrow", wants("a.b"), False)])
    for way in ("sb1 b1", "b1 pb", "sb2 b2", "b2 pb"):
        network.deliver(*way.split())
    network.settle()
    publisher = network.interests["pb"]
    assert set(publisher.roots("middle", SPACE)) == {"a.*", "a.b"}
    network.summaries = True
    network.pass_time(SUMMARY_MS)
    network.settle()
    assert set(publisher.roots("middle", SPACE)) == {"a.*"}
    network.change("sb2", [("other", wants("b"), False)])
    for middle in ("b1", "b2"):
        network.deliver("sb2", middle, lost=True)
    network.pass_time(SUMMARY_MS)
    network.settle()
    assert set(publisher.roots("middle", SPACE)) == {"a.*", "b"}
    assert publisher.time("sb2") == 3
    network.pass_time(SUMMARY_MS)
    while waiting := [pair for pair, wire in network.wires.items() if wire]:
        assert not any(isinstance(network.wires[pair][0], Lagging) for pair in waiting)
        network.deliver(*waiting[0])


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
    network.pass_time(5_000)
    network.interests["sb1"].observed(SPACE, publisher.time("sb1"), network.now_ms)
    network.collect("sb1")
    network.settle()
    assert set(publisher.roots("middle", SPACE)) == {"x"}
    network.pass_time(20_000)
    network.interests["sb1"].observed(SPACE, publisher.time("sb1"), network.now_ms)
    network.collect("sb1")
    assert not any(network.wires.values())


def test_a_message_with_a_later_vector_asks_for_what_is_missing() -> None:
    """Of the brokers of the tree node behind which the leaf is."""
    network = make(sb1="a")
    network.change("sb1", [("x", wants("x"), False)])
    for middle in ("b1", "b2"):
        network.deliver("sb1", middle)
        network.deliver(middle, "pb", lost=True)
    network.settle()
    publisher = network.interests["pb"]
    publisher.demanded({"sb1": 1, "sb2": 1})
    assert publisher.take_output(0) == []
    publisher.demanded({"sb1": 2})
    network.collect("pb")
    network.settle()
    assert set(publisher.roots("middle", SPACE)) == {"a", "x"}


def test_full_states_replace_join_or_are_dropped() -> None:
    """As their vector is as late as what is known, neither later nor earlier, or earlier."""
    interest = ConstraintInterest("here", ("there",), Aggregation.COVERING, 100)
    interest.connected("there", "b", 1)
    both = ((SPACE, ("one", "two")),)
    interest.received("there", "b", FullState((wants("a"),), {"one": 2, "two": 1}, both), 0)
    interest.received("there", "b", FullState((wants("b"),), {"one": 1, "two": 3}, both), 0)
    assert set(interest.roots("there", SPACE)) == {"a", "b"}
    assert interest.vector("there", SPACE) == {"one": 2, "two": 3}
    interest.received("there", "b", FullState((wants("c"),), {"one": 2, "two": 2}, both), 0)
    assert set(interest.roots("there", SPACE)) == {"a", "b"}
    interest.received("there", "b", FullState((wants("d"),), {"one": 2, "two": 3}, both), 0)
    assert set(interest.roots("there", SPACE)) == {"d"}
    interest.received("there", "b", FullState((), {"one": 3}, both), 0)
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
    network.summaries = True
    network.pass_time(SUMMARY_MS)
    network.settle()
    network.crash("b1")
    network.pass_time(40_000)
    assert network.interests["pb"].matches("middle", SPACE, "a")
    network.crash("b2")
    network.pass_time(29_999)
    assert network.interests["pb"].matches("middle", SPACE, "a")
    network.pass_time(SUMMARY_MS)
    assert not network.interests["pb"].matches("middle", SPACE, "a")
    assert network.interests["pb"].direction("sb1") is None


def test_a_durable_leaf_stays_until_it_is_forgotten() -> None:
    """Also at brokers further on, which hear that it was given up."""
    network = Network(FIGURE, EDGES, scheme=ConstraintInterest)
    for leaf in ("pb", "sb1", "sb2"):
        network.change(leaf, [("first", wants("a"), leaf == "sb1")])
    network.settle()
    network.crash("sb1")
    for _ in range(50):
        network.pass_time(SUMMARY_MS)
        network.settle()
    publisher = network.interests["pb"]
    assert publisher.vector("middle", SPACE) == {"sb1": 1, "sb2": 1}
    assert publisher.durable("middle") == {"sb1"}
    assert publisher.reachable("middle", "b1") == {"sb2"}
    for name in ("b1", "b2"):
        network.interests[name].forget("sb1")
        network.interests[name].forget("sb2")
    network.pass_time(SUMMARY_MS)
    network.settle()
    assert publisher.direction("sb1") is None
    assert publisher.vector("middle", SPACE) == {"sb2": 1}


def test_acks_count_for_the_leaves_of_the_last_summary() -> None:
    """Its serial is known at both ends, and is 0 while something is to be told."""
    network = Network(FIGURE, EDGES, scheme=ConstraintInterest)
    for leaf in ("pb", "sb1", "sb2"):
        network.change(leaf)
    network.settle()
    middle, publisher = network.interests["b1"], network.interests["pb"]
    assert middle.announced("pb", "pb") == publisher.applied("middle", "b1") > 0
    assert publisher.interested("middle", "b1", SPACE) == frozenset()
    network.change("sb1", [("x", wants("x"), False)])
    network.deliver("sb1", "b1")
    before = publisher.applied("middle", "b1")
    network.deliver("sb1", "b1")
    assert middle.announced("pb", "pb") == before + 1
    network.settle()
    assert publisher.applied("middle", "b1") == before + 1
    assert publisher.interested("middle", "b1", SPACE) == {"sb1"}
    network.cut("b1", "pb")
    assert (middle.announced("pb", "pb"), publisher.applied("middle", "b1")) == (0, 0)
