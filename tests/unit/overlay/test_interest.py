"""One broker's interest, and that of small networks: what crosses which link."""

from __future__ import annotations

from tests.unit.overlay.network import OTHER, SPACE, Network, wants

FIGURE = {"pb": ("pb",), "middle": ("b1", "b2"), "one": ("sb1",), "two": ("sb2",)}
EDGES = [("pb", "middle"), ("middle", "one"), ("middle", "two")]


def test_a_binding_is_known_at_every_broker_on_the_way() -> None:
    """A leaf's binding reaches the brokers of the middle and the publishing leaf, with its virtual time."""
    network = Network(FIGURE, EDGES)
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


def test_a_node_is_not_told_of_its_own_interest() -> None:
    """What a leaf wants does not come back to it."""
    network = Network(FIGURE, EDGES)
    network.change("sb1", [("x", wants("a.*"), False)])
    network.settle()
    assert not network.interests["sb1"].roots("middle", SPACE)
    assert network.interests["sb1"].leaves("middle") == {"pb", "sb2"}


def test_a_withdrawn_cover_exposes_what_it_hid_in_the_same_update() -> None:
    """The publishing leaf never lacks a pattern that is wanted while the one that covers it goes."""
    network = Network(FIGURE, EDGES)
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


def test_a_space_is_touched_though_its_roots_stay() -> None:
    """A binding that a neighbour's covers changes no root, and yet the publishing leaf learns its virtual time."""
    network = Network(FIGURE, EDGES)
    network.change("sb2", [("y", wants("a.*"), False), ("z", wants("b", OTHER), False)])
    network.settle()
    publisher = network.interests["pb"]
    publisher.take_touched()
    network.change("sb1", [("x", wants("a.b"), False)])
    network.settle()
    assert publisher.take_touched() == {SPACE}
    assert publisher.vector("middle", SPACE) == {"sb1": 1, "sb2": 1}
    assert publisher.take_touched() == set()
