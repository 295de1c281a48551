"""The examples 1 to 5 of the Gryphon paper, by both schemes.

Topic patterns stand for the paper's conjunctions: `nyse.ibm.#` for stock = nyse:ibm, `nyse.t.high` for stock = nyse:t
and p > 19. SB1 and SB2 are below b1 and b2, SB3 is below b3.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.overlay.aggregation import checksum
from broker.overlay.interest import Interest
from tests.overlay.reference.constraints import ConstraintInterest
from tests.overlay.reference.packets import Increment
from tests.unit.overlay.network import SPACE, Network, wants

NODES = {"N31": ("PB1",), "N21": ("b1", "b2"), "N22": ("b3",), "N11": ("SB1",), "N12": ("SB2",), "N13": ("SB3",)}
EDGES = [("N31", "N21"), ("N31", "N22"), ("N21", "N11"), ("N21", "N12"), ("N22", "N13")]
IBM, ALL, IBM_HIGH, T_HIGH, MSFT = "nyse.ibm.#", "nyse.#", "nyse.ibm.high", "nyse.t.high", "nasdaq.msft"
SCHEMES = pytest.mark.parametrize("scheme", [Interest, ConstraintInterest])


def network_after_s1_and_s4(scheme: Any) -> Network:
    """Return the network after two of the subscriptions and one at SB3 have reached every broker."""
    network = Network(NODES, EDGES, scheme=scheme)
    network.change("SB1", [("s1", wants(IBM), False)])
    network.change("SB2", [("s4", wants(ALL), False)])
    network.change("SB3", [("s3", wants("lse"), False)])
    network.settle()
    return network


def subscribe_s2(network: Network) -> None:
    """Subscribe the three conjunctions of s2 at SB1; what it sends waits on the wires."""
    network.change("SB1", [(f"s2 {text}", wants(text), False) for text in (IBM_HIGH, T_HIGH, MSFT)])


def passes(network: Network, broker: str, node: str, key: str, vector: dict[str, int]) -> bool:
    """Return whether a broker sends a message to a tree node."""
    interest = network.interests[broker]
    return interest.matches(node, SPACE, key) or not interest.sufficient(node, SPACE, vector)


@SCHEMES
def test_example_1_virtual_start_times(scheme: Any) -> None:
    """The conjunctions of s2 start at 2, the covered one, too (1 in the paper); SB1 goes on to 3."""
    network = network_after_s1_and_s4(scheme)
    subscribe_s2(network)
    interest = network.interests["SB1"]
    assert [interest.vst(name) for name in ("s1", f"s2 {IBM_HIGH}", f"s2 {T_HIGH}", f"s2 {MSFT}")] == [1, 2, 2, 2]
    assert interest.time("SB1") == 2
    network.change("SB1", [("next", wants("x"), False)])
    assert interest.vst("next") == 3


def test_example_2_the_increment_of_a_leaf() -> None:
    """It has the roots that are new, the time before it went on, and a constraint on that leaf alone."""
    network = network_after_s1_and_s4(ConstraintInterest)
    subscribe_s2(network)
    increment = network.wires["SB1", "b1"][-1]
    roots = (wants(T_HIGH), wants(MSFT))
    known = checksum(wants(IBM))
    assert increment == Increment("SB1", 2, roots, (), {"SB1": 1}, False, known, spaces=(SPACE,), touched=(SPACE,))


def test_example_3_a_merged_increment_is_constrained_by_all_of_v_b() -> None:
    """The conjunction that SB2's covers is left out; V_b of b1 and PB1 go on."""
    network = network_after_s1_and_s4(ConstraintInterest)
    subscribe_s2(network)
    network.deliver("SB1", "b1")
    increment = network.wires["b1", "PB1"][-1]
    assert (increment.added, increment.removed) == ((wants(MSFT),), ())
    assert (increment.constraint, increment.whole) == ({"SB1": 1, "SB2": 1}, True)
    assert increment.checksum == checksum(wants(ALL))
    assert (network.interests["b1"].time("SB1"), network.interests["b1"].time("SB2")) == (2, 1)
    assert [network.interests["PB1"].time(leaf) for leaf in ("SB1", "SB2", "SB3")] == [1, 1, 1]
    network.deliver("b1", "PB1")
    assert [network.interests["PB1"].time(leaf) for leaf in ("SB1", "SB2", "SB3")] == [2, 1, 1]


@SCHEMES
def test_example_4_a_broker_that_lags_behind_sends_what_it_does_not_match(scheme: Any) -> None:
    """b2 has not heard of s2: it filters by the old vector, and sends everything of the new one to SB1."""
    network = network_after_s1_and_s4(scheme)
    subscribe_s2(network)
    network.deliver("SB1", "b1")
    before = {"SB1": 1, "SB2": 1, "SB3": 1}
    assert passes(network, "b1", "N11", "nyse.ibm.high", before)
    assert network.interests["b2"].sufficient("N11", SPACE, before)
    assert not passes(network, "b2", "N11", "nyse.t.high", before)
    network.deliver("b1", "PB1")
    publisher = network.interests["PB1"]
    after = publisher.vector("N21", SPACE) | publisher.vector("N22", SPACE)
    assert after == {"SB1": 2, "SB2": 1, "SB3": 1}
    assert network.interests["b1"].matches("N11", SPACE, "nyse.t.high")
    assert network.interests["b1"].sufficient("N11", SPACE, after)
    assert not network.interests["b2"].matches("N11", SPACE, "nyse.t.high")
    assert not network.interests["b2"].sufficient("N11", SPACE, after)
    assert network.interests["b2"].sufficient("N12", SPACE, after)
    assert passes(network, "b2", "N11", "nyse.t.high", after)


@SCHEMES
def test_example_5_delivery_starts_where_no_later_message_is_filtered(scheme: Any) -> None:
    """m1 has V_m(SB1) = 1 < s2.vst = 2, and b2 would filter a later message of that vector; m3 has 2."""
    network = network_after_s1_and_s4(scheme)
    subscribe_s2(network)
    network.deliver("SB1", "b1")
    network.deliver("b1", "PB1")
    vst = max(network.interests["SB1"].vst(f"s2 {text}") for text in (IBM_HIGH, T_HIGH, MSFT))
    first, third = {"SB1": 1, "SB2": 1, "SB3": 1}, {"SB1": 2, "SB2": 1, "SB3": 1}
    assert first["SB1"] < vst <= third["SB1"]
    assert not passes(network, "b2", "N11", "nyse.t.high", first)
    assert all(passes(network, broker, "N11", "nyse.t.high", third) for broker in ("b1", "b2"))
