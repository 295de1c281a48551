"""Increments without a pattern end where they become empty, and V_m is read as the later vector there."""

from __future__ import annotations

from tests.overlay.reference.empty_increments import EmptyIncrementsEnd
from tests.unit.overlay.network import SPACE, Network, wants
from tests.unit.overlay.test_constraints import WithoutSummaries
from tests.unit.overlay.test_paper_examples import MSFT, T_HIGH, network_after_s1_and_s4, passes

KNOWN = {"SB1": 1, "SB2": 1, "SB3": 1}


def covered() -> Network:
    """Return the paper's network after SB1 has subscribed what SB2's subscription covers, at b1 alone."""
    network = network_after_s1_and_s4(EmptyIncrementsEnd)
    network.change("SB1", [("t", wants(T_HIGH), False)])
    network.deliver("SB1", "b1")
    return network


def test_an_empty_increment_is_not_passed_on_and_v_m_is_read_as_the_later_one() -> None:
    """The publishing leaf never hears of it, and a message with the vector that it knows may start the delivery."""
    network = covered()
    assert not network.wires["b1", "PB1"]
    assert network.interests["PB1"].time("SB1") == 1
    assert passes(network, "PB1", "N21", "nyse.t.high", KNOWN)
    assert passes(network, "b1", "N11", "nyse.t.high", KNOWN)
    assert network.interests["b1"].reading("N31", SPACE, KNOWN) == {**KNOWN, "SB1": 2}


def test_a_sibling_that_has_not_heard_of_it_reads_v_m_as_it_is() -> None:
    """It may leave the message out; the leaf sees that its time has fallen, and asks again."""
    network = covered()
    assert not passes(network, "b2", "N11", "nyse.t.high", KNOWN)
    assert network.interests["b2"].reading("N31", SPACE, KNOWN) == KNOWN


def test_only_the_vector_that_the_neighbour_knew_is_read_as_a_later_one() -> None:
    """With another leaf's later time the neighbour may know that the cover is gone."""
    reading = covered().interests["b1"].reading
    for other in ({"SB1": 1, "SB2": 2}, {"SB1": 1}, {"SB1": 1, "SB2": 0}):
        assert reading("N31", SPACE, other) == other


def test_a_broker_that_passes_an_increment_on_reads_nothing() -> None:
    """Its neighbour hears of the later time, and messages of the earlier one were matched without the pattern."""
    network = network_after_s1_and_s4(EmptyIncrementsEnd)
    network.change("SB1", [("m", wants(MSFT), False)])
    network.deliver("SB1", "b1")
    assert network.wires["b1", "PB1"]
    assert network.interests["b1"].reading("N31", SPACE, KNOWN) == KNOWN


def test_the_next_increment_of_the_leaf_makes_up_for_those_that_ended() -> None:
    """Its constraint is what the neighbour knows, and its virtual time stands for all before."""
    network = covered()
    network.change("SB1", [("m", wants(MSFT), False)])
    network.deliver("SB1", "b1")
    (increment,) = network.wires["b1", "PB1"]
    assert (increment.time, increment.added, increment.constraint) == (3, (wants(MSFT),), {"SB1": 1, "SB2": 1})
    network.settle()
    publisher = network.interests["PB1"]
    assert publisher.time("SB1") == 3
    assert publisher.rejected == 0


def test_what_a_withdrawn_cover_hid_is_exposed() -> None:
    """Also what the publishing leaf was never told."""
    network = covered()
    network.settle()
    network.change("SB2", [], ["s4"])
    network.settle()
    publisher = network.interests["PB1"]
    assert publisher.matches("N21", SPACE, "nyse.t.high")
    assert not publisher.matches("N21", SPACE, "nyse.t.low")


def test_a_publishing_leaf_that_is_asked_for_the_later_time_learns_it() -> None:
    """The leaf saw it in a message over one sibling, and not in the next one over the other."""
    network = covered()
    network.settle()
    network.interests["b1"].demanded({"SB1": 1})
    network.interests["PB1"].lags("N21", "b1")
    network.collect("PB1")
    network.settle()
    assert network.interests["PB1"].time("SB1") == 2


def test_a_broker_between_may_leave_out_what_the_reading_promises() -> None:
    """A counter-example to the paper's variant, and why brokers do not use it.

    The publishing leaf sends a message that x's wide pattern matches. The broker q knows already, from c2, that the
    wide pattern is gone, and not that y wants a part of it: c1 has kept that to itself, and c2 has not heard. So q
    leaves the message out, with sufficient information, and c1 reads its silence as one that y's pattern was matched
    against.
    """
    brokers = {"pb": ("pb",), "top": ("q",), "low": ("c1", "c2"), "x": ("x",), "y": ("y",)}
    network = WithoutSummaries(
        brokers, [("pb", "top"), ("top", "low"), ("low", "x"), ("low", "y")], scheme=EmptyIncrementsEnd
    )
    for leaf in ("pb", "x", "y"):
        network.change(leaf, [("wide", wants("a.*"), False)] if leaf == "x" else [("other", wants("b"), False)])
    network.settle()
    published = network.interests["pb"].vector("top", SPACE)
    assert passes(network, "pb", "top", "a.b", published)
    network.change("y", [("narrow", wants("a.b"), False)])
    network.deliver("y", "c1")
    network.change("x", [], ["wide"])
    network.deliver("x", "c2")
    network.deliver("c2", "q")
    assert not passes(network, "q", "low", "a.b", published)
    promised = network.interests["c1"].reading("top", SPACE, published)
    assert promised["y"] >= network.interests["y"].vst("narrow")
