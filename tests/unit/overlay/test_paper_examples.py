"""The examples 1, 4 and 5 of the Gryphon paper.

Topic patterns stand for the paper's conjunctions: `nyse.ibm.#` for stock = nyse:ibm, `nyse.t.high` for stock = nyse:t
and p > 19. SB1 and SB2 are below b1 and b2, SB3 is below b3.
"""

from __future__ import annotations

from tests.unit.overlay.network import SPACE, Network, wants

NODES = {"N31": ("PB1",), "N21": ("b1", "b2"), "N22": ("b3",), "N11": ("SB1",), "N12": ("SB2",), "N13": ("SB3",)}
EDGES = [("N31", "N21"), ("N31", "N22"), ("N21", "N11"), ("N21", "N12"), ("N22", "N13")]
IBM, ALL, IBM_HIGH, T_HIGH, MSFT = "nyse.ibm.#", "nyse.#", "nyse.ibm.high", "nyse.t.high", "nasdaq.msft"


def network_after_s1_and_s4() -> Network:
    """Return the network after two of the subscriptions and one at SB3 have reached every broker."""
    network = Network(NODES, EDGES)
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


def test_example_1_virtual_start_times() -> None:
    """The conjunctions of s2 start at 2, the covered one, too (1 in the paper); SB1 continues to 3."""
    network = network_after_s1_and_s4()
    subscribe_s2(network)
    interest = network.interests["SB1"]
    names = ("s1", f"s2 {IBM_HIGH}", f"s2 {T_HIGH}", f"s2 {MSFT}")
    assert [interest.subscriptions.start(name) for name in names] == [1, 2, 2, 2]
    assert interest.time("SB1") == 2
    network.change("SB1", [("next", wants("x"), False)])
    assert interest.subscriptions.start("next") == 3


def test_example_4_a_broker_that_lags_behind_sends_what_it_does_not_match() -> None:
    """b2 has not heard of s2: it filters by the old vector, and sends everything of the new one to SB1."""
    network = network_after_s1_and_s4()
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


def test_example_5_delivery_starts_where_no_later_message_is_filtered() -> None:
    """m1 has V_m(SB1) = 1 < s2.vst = 2, and b2 would filter a later message of that vector; m3 has 2."""
    network = network_after_s1_and_s4()
    subscribe_s2(network)
    network.deliver("SB1", "b1")
    network.deliver("b1", "PB1")
    vst = max(network.interests["SB1"].subscriptions.start(f"s2 {text}") for text in (IBM_HIGH, T_HIGH, MSFT))
    first, third = {"SB1": 1, "SB2": 1, "SB3": 1}, {"SB1": 2, "SB2": 1, "SB3": 1}
    assert first["SB1"] < vst <= third["SB1"]
    assert not passes(network, "b2", "N11", "nyse.t.high", first)
    assert all(passes(network, broker, "N11", "nyse.t.high", third) for broker in ("b1", "b2"))
