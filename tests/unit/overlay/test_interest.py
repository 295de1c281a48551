"""One broker's interest, and that of small networks: what crosses which link."""

from __future__ import annotations

import pytest

from broker.overlay.aggregation import Aggregation
from broker.overlay.interest import WITHDRAW_AFTER_MS, Interest
from broker.overlay.packets import Contradiction, Update
from tests.unit.overlay.network import OTHER, SPACE, Network, wants

FIGURE = {"pb": ("pb",), "middle": ("b1", "b2"), "one": ("sb1",), "two": ("sb2",)}
EDGES = [("pb", "middle"), ("middle", "one"), ("middle", "two")]


@pytest.fixture
def network() -> Network:
    """Provide the network of the figure."""
    return Network(FIGURE, EDGES)


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


def told(interest: Interest, node: str) -> list[Update]:
    """Return the updates to a node, each of which is acknowledged at once."""
    updates = []
    for towards, broker, packet in interest.take_output(0):
        if towards == node and isinstance(packet, Update):
            updates.append(packet)
        if isinstance(packet, Update):
            interest._links[towards][broker].acknowledge(packet.serial)
    return updates


def test_a_leaf_tells_that_it_wants_everything_and_then_nothing_more() -> None:
    """All bindings of a space share the start point of the first one, so none of the others has anything to tell."""
    for aggregation in Aggregation:
        leaf = Interest("own", ["there"], aggregation, 100, "leaf", one_way=["there"])
        leaf.change((), ())
        leaf.connected("there", "b", 1)
        told(leaf, "there")
        leaf.change([("1", wants("a.*"), False)], ())
        (update,) = told(leaf, "there")
        assert (update.added, update.removed) == ((wants("#"),), ())
        start = leaf.subscriptions.start("1")
        assert update.slice == {"leaf": start}
        leaf.change([("2", wants("b"), False), ("3", wants("a.*"), False)], ["1"])
        assert told(leaf, "there") == []
        assert leaf.subscriptions.start("2") == leaf.subscriptions.start("3") == start
        leaf.change([("4", wants("b", OTHER), False)], ["2"])
        (update,) = told(leaf, "there")
        assert (update.added, update.removed) == ((wants("#", OTHER),), ())
        leaf.change((), ["3"])
        (update,) = told(leaf, "there")
        assert (update.added, update.removed) == ((), (wants("#"),))


def test_an_inner_broker_tells_each_neighbour_as_its_link_asks() -> None:
    """Patterns go to one neighbour and everything to the other, with the same virtual times."""
    inner = Interest("own", ["plain", "narrow", "leaf"], Aggregation.COVERING, 100, one_way=["plain"])
    for node in ("plain", "narrow", "leaf"):
        inner.connected(node, node, 1)
        told(inner, node)
    first = Update(1, full=True, last=True, added=(wants("a"),), slice={"leaf": 1}, interested=((SPACE, ("leaf",)),))
    second = Update(2, full=False, last=True, added=(wants("b"),), slice={"leaf": 2}, touched=(SPACE,))
    found = []
    for update in (first, second):
        inner.received("leaf", "leaf", update, 0)
        output = [(node, one) for node, _, one in inner.take_output(0) if isinstance(one, Update)]
        found.append({node: (one.added, one.slice) for node, one in output})
        for node in ("plain", "narrow"):
            inner._links[node][node].acknowledge(9)
    assert found == [
        {"plain": ((wants("#"),), {"leaf": 1}), "narrow": ((wants("a"),), {"leaf": 1})},
        {"plain": ((), {"leaf": 2}), "narrow": ((wants("b"),), {"leaf": 2})},
    ]
