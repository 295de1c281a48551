"""Links that carry no subscriptions: what a broker tells the neighbour."""

from __future__ import annotations

from broker.overlay.aggregation import Aggregation
from broker.overlay.interest import Interest
from broker.overlay.packets import Update
from tests.unit.overlay.network import OTHER, SPACE, wants


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
