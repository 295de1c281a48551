"""One broker's interest, and that of small networks: what crosses which link."""

from __future__ import annotations

import pytest

from broker.overlay.interest import WITHDRAW_AFTER_MS
from broker.overlay.packets import Contradiction
from tests.unit.overlay.network import OTHER, SPACE, Network, wants

FIGURE = {"pb": ("pb",), "middle": ("b1", "b2"), "one": ("sb1",), "two": ("sb2",)}
EDGES = [("pb", "middle"), ("middle", "one"), ("middle", "two")]


@pytest.fixture
def network() -> Network:
    """Provide the network of the figure."""
    return Network(FIGURE, EDGES)


def test_a_binding_is_known_at_every_broker_on_the_way(network: Network) -> None:
    """A leaf's binding reaches the brokers of the middle and the publishing leaf, with its virtual time."""
    network.change("sb1", [("x", wants("a.*"), False)])
    network.settle()
    publisher = network.interests["pb"]
    assert set(publisher.roots("middle", SPACE)) == {"a.*"}
    assert publisher.matches("middle", SPACE, "a.b")
    assert not publisher.matches("middle", SPACE, "b.b")
    assert publisher.vector("middle", SPACE) == {"sb1": 1}
    assert publisher.direction("sb1") == "middle"
    for name in ("b1", "b2"):
        assert network.interests[name].wanting(SPACE, "a.b") == ("one",)
        assert network.interests[name].interested("one", "sb1", SPACE) == {"sb1"}


def test_a_loop_of_links_is_refused_until_a_tree_is_left() -> None:
    """A broker that gets a leaf from two tree nodes ends the second link, without applying any of it."""
    triangle = {"one": ("a",), "two": ("b",), "ni": ("i",), "nj": ("j",), "nk": ("k",)}
    edges = [("one", "ni"), ("two", "nj"), ("ni", "nj"), ("nj", "nk"), ("nk", "ni")]
    network = Network(triangle, edges)
    network.change("a", [("x", wants("#"), True)])
    network.change("b", [("x", wants("#"), True)])
    refused: list[str] = []
    for _ in range(10):
        for one, other in network.pairs():
            if (one, other) not in network.links:
                network.connect(one, other)
        while waiting := [pair for pair, wire in network.wires.items() if wire]:
            sender, receiver = waiting[0]
            try:
                network.deliver(sender, receiver)
            except Contradiction as contradiction:
                refused.append(str(contradiction))
                network.cut(sender, receiver)
                network.collect(sender)
                network.collect(receiver)
    assert len(network.links) == len(edges) - 1
    assert "the links make a loop, or two leaves have one name" in refused[0]
    assert {("a", "i"), ("b", "j")} <= network.links
    for name in "ijk":
        interest = network.interests[name]
        for leaf in "ab":
            (broker,) = triangle[interest.direction(leaf)]
            assert (min(name, broker), max(name, broker)) in network.links
    assert network.interests["a"].vector("ni", SPACE) == {"b": 1}
    assert network.interests["b"].vector("nj", SPACE) == {"a": 1}


def test_a_node_is_not_told_of_its_own_interest(network: Network) -> None:
    """A leaf's own interest is not announced back to it."""
    network.change("sb1", [("x", wants("a.*"), False)])
    network.settle()
    assert not network.interests["sb1"].roots("middle", SPACE)
    assert network.interests["sb1"].leaves("middle") == {"pb", "sb2"}


def test_a_withdrawn_cover_exposes_what_it_hid_in_the_same_update(network: Network) -> None:
    """The publishing leaf never lacks a pattern that is wanted while the one that covers it goes."""
    network.change("sb1", [("x", wants("a.b"), False)])
    network.change("sb2", [("y", wants("a.*"), False)])
    network.settle()
    publisher = network.interests["pb"]
    assert set(publisher.roots("middle", SPACE)) == {"a.*"}
    network.change("sb2", removed=["y"])
    while any(network.wires.values()):
        for (sender, receiver), wire in network.wires.items():
            if wire:
                network.deliver(sender, receiver)
            assert publisher.matches("middle", SPACE, "a.b")
    assert set(publisher.roots("middle", SPACE)) == {"a.b"}
    assert publisher.vector("middle", SPACE) == {"sb1": 1}
    assert publisher.time("sb2") == 2


def test_a_space_is_touched_though_its_roots_stay(network: Network) -> None:
    """A binding that a neighbour's covers changes no root, and yet the publishing leaf learns its virtual time."""
    network.change("sb2", [("y", wants("a.*"), False), ("z", wants("b", OTHER), False)])
    network.settle()
    publisher = network.interests["pb"]
    publisher.take_touched()
    network.change("sb1", [("x", wants("a.b"), False)])
    network.settle()
    assert publisher.take_touched() == {SPACE}
    assert publisher.vector("middle", SPACE) == {"sb1": 1, "sb2": 1}
    assert publisher.take_touched() == set()


def test_a_broker_that_is_lost_withdraws_exactly_its_own_after_a_while(network: Network) -> None:
    """The other leaf's interest stays, and so does what both wanted."""
    network.change("sb1", [("x", wants("a"), False), ("y", wants("b"), False)])
    network.change("sb2", [("x", wants("a"), False)])
    network.settle()
    network.crash("sb1")
    network.pass_time(WITHDRAW_AFTER_MS - 1)
    network.settle()
    assert set(network.interests["pb"].roots("middle", SPACE)) == {"a", "b"}
    network.pass_time(1)
    network.settle()
    publisher = network.interests["pb"]
    assert set(publisher.roots("middle", SPACE)) == {"a"}
    assert (publisher.vector("middle", SPACE), publisher.direction("sb1")) == ({"sb2": 1}, None)
    assert not publisher.sufficient("middle", SPACE, {"sb1": 1})


def test_a_durable_leaf_stays_until_it_is_forgotten(network: Network) -> None:
    """Its patterns and its time are announced on; after `forget` they go as those of any other."""
    network.change("sb1", [("x", wants("a"), True)])
    network.settle()
    network.crash("sb1")
    network.pass_time(100 * WITHDRAW_AFTER_MS)
    network.settle()
    publisher = network.interests["pb"]
    assert publisher.vector("middle", SPACE) == {"sb1": 1}
    for name in ("b1", "b2"):
        network.interests[name].forget("sb1")
    assert not publisher._directions["middle"].replicas["b1"].lost_ms
    network.pass_time(1)
    network.settle()
    assert publisher.direction("sb1") is None
    assert not publisher.roots("middle", SPACE)


def test_a_live_leaf_is_not_forgotten(network: Network) -> None:
    """Only what is lost can be given up."""
    network.change("sb1", [("x", wants("a"), True)])
    network.settle()
    network.interests["b1"].forget("sb1")
    network.settle()
    assert network.interests["b1"].vector("one", SPACE) == {"sb1": 1}


def test_a_middle_broker_that_restarts_does_not_take_its_leaves_away() -> None:
    """Its earlier announcements count until it, or another broker of its node, knows each leaf again."""
    network = Network({**FIGURE, "middle": ("b1",)}, EDGES)
    network.change("sb1", [("x", wants("a"), False)])
    network.settle()
    publisher = network.interests["pb"]
    links = network.crash("b1")
    network.connect("b1", "pb")
    network.settle()
    assert publisher.vector("middle", SPACE) == {"sb1": 1}
    assert publisher.matches("middle", SPACE, "a")
    assert len(publisher._directions["middle"].replicas) == 2
    assert not network.interests["b1"].sufficient("one", SPACE, {"sb1": 1})
    for link in links:
        network.connect(*link)
    network.settle()
    network.pass_time(1)
    assert publisher._directions["middle"].replicas.keys() == {"b1"}
    assert publisher.vector("middle", SPACE) == {"sb1": 1}
    assert network.interests["b1"].sufficient("one", SPACE, {"sb1": 1})


def test_a_leaf_that_restarts_is_never_believed_to_be_earlier(network: Network) -> None:
    """Its time continues behind the persisted bound, and until its first batch it claims nothing."""
    network.change("sb1", [("x", wants("a"), True)])
    network.settle()
    bound = network.bounds["sb1"]
    for link in network.crash("sb1"):
        network.connect(*link)
    network.settle()
    assert network.interests["pb"].vector("middle", SPACE) == {"sb1": 1}
    network.change("sb1", [("x", wants("a"), True)])
    network.settle()
    assert network.interests["sb1"].subscriptions.start("x") == bound + 1
    assert network.interests["pb"].vector("middle", SPACE) == {"sb1": bound + 1}


def test_a_receiver_without_a_base_asks_for_everything(network: Network) -> None:
    """An update that is not a full one tells a new replica nothing."""
    network.settle()
    network.interests["pb"].connected("middle", "b1", 99)
    network.change("sb1", [("x", wants("a"), False)])
    network.settle()
    assert network.interests["pb"]._directions["middle"].replicas["b1"].patterns == {SPACE: {"a"}}


def test_a_hello_that_is_repeated_begins_no_session(network: Network) -> None:
    """The session's number is the same."""
    network.settle()
    interest = network.interests["pb"]
    interest.connected("middle", "b1", interest._directions["middle"].replicas["b1"].session)
    assert interest.take_output(0) == []


def test_a_lost_update_is_repeated(network: Network) -> None:
    """The acknowledgement does not come, and later updates wait for it."""
    network.settle()
    network.change("sb1", [("x", wants("a"), False)])
    network.deliver("sb1", "b1", lost=True)
    network.change("sb1", [("y", wants("b"), False)])
    network.settle()
    assert not network.interests["b1"].roots("one", SPACE)
    network.pass_time(1000)
    network.settle()
    assert set(network.interests["b1"].roots("one", SPACE)) == {"a", "b"}


def test_the_full_feed_replaces_very_many_patterns() -> None:
    """Above the limit a neighbour is told `#`, and the virtual times continue."""
    network = Network(FIGURE, EDGES, patterns_max=3)
    for place in range(6):
        network.change("sb1", [(str(place), wants(f"a.{place}"), False)])
    network.settle()
    publisher = network.interests["pb"]
    assert list(publisher.roots("middle", SPACE)) == ["#"]
    assert publisher.vector("middle", SPACE) == {"sb1": 6}
    network.change("sb1", [], ["0", "1", "2", "3", "4"])
    network.settle()
    assert list(publisher.roots("middle", SPACE)) == ["a.5"]


def test_only_durability_may_change(network: Network) -> None:
    """A leaf whose last durable binding goes is not durable anywhere, at no other virtual time."""
    network.change("sb1", [("x", wants("a"), False), ("y", wants("a"), True)])
    network.settle()
    replica = network.interests["pb"]._directions["middle"].replicas["b1"]
    assert replica.durable == {"sb1"}
    network.change("sb1", [], ["y"])
    network.settle()
    assert replica.durable == set()
    assert replica.times["sb1"] == 1


def test_what_is_merged_is_looked_at_once() -> None:
    """Each of 5,000 patterns in parts costs the publishing leaf one addition, and later changes cost no more."""
    network = Network(FIGURE, EDGES, patterns_max=100_000)
    network.settle()
    bindings = [(str(place), wants(f"a.{place}"), False) for place in range(5_000)]
    network.change("sb1", bindings)
    parts = 0
    for _ in range(1000):
        waiting = [pair for pair, wire in network.wires.items() if wire]
        if not waiting:
            break
        for pair in waiting:
            parts += pair == ("b1", "pb")
            network.deliver(*pair)
    assert len(network.interests["pb"].roots("middle", SPACE)) == 5_000
    assert parts < 25  # 10 parts, and some of the additions crossed in updates of their own
    network.change("sb1", [], ["17"])
    network.settle()
    assert len(network.interests["pb"].roots("middle", SPACE)) == 4_999


def test_a_broker_that_lost_its_way_to_a_leaf_says_so(network: Network) -> None:
    """It still announces the leaf, as it knows what the leaf wanted; a stream had better go over its sibling."""
    network.change("sb1", [("x", wants("a"), True)])
    network.settle()
    publisher = network.interests["pb"]
    version = publisher.version
    network.cut("b1", "sb1")
    network.collect("b1")
    network.settle()
    assert publisher.version > version
    assert publisher.reachable("middle", "b1") == {"sb2"}
    assert publisher.reachable("middle", "b2") == {"sb1", "sb2"}
    assert publisher.interested("middle", "b1", SPACE) == {"sb1"}
    network.connect("b1", "sb1")
    network.settle()
    assert publisher.reachable("middle", "b1") == {"sb1", "sb2"}
    network.cut("b1", "pb")
    assert publisher.reachable("middle", "b1") == frozenset()


def test_the_freshest_replica_says_which_leaves_are_interested(network: Network) -> None:
    """A sibling that has not heard of the last unbind does not hold the leaf in; its patterns match on."""
    network.change("sb1", [("x", wants("a"), False)])
    network.settle()
    network.change("sb1", [], ["x"])
    network.deliver("sb1", "b1")
    network.deliver("b1", "pb")
    publisher = network.interests["pb"]
    assert (publisher.vector("middle", SPACE), publisher.time("sb1")) == ({}, 2)
    assert publisher.matches("middle", SPACE, "a")
    network.settle()
    assert not publisher.matches("middle", SPACE, "a")
