"""The start points of bindings."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from broker.overlay.aggregation import Aggregation
from broker.overlay.packets import Conjunction, Space
from broker.overlay.subscriptions import Subscriptions
from broker.overlay.virtual_time import VirtualTime

SPACE = Space("/", "orders")
WANTED = Conjunction(SPACE, "#")


class Bindings:
    """The subscriptions of a leaf whose virtual time begins with 1, and ends with each batch."""

    def __init__(self, recovered: Mapping[str, int]) -> None:
        self.time = VirtualTime()
        self.subscriptions = Subscriptions(Aggregation.COVERING, self.time)
        self.subscriptions.recover(recovered)

    def change(self, added: Mapping[str, bool], *removed: str) -> None:
        """Apply a batch: bindings, each durable or not, and bindings that are gone."""
        self.subscriptions.change([(name, WANTED, durable) for name, durable in added.items()], removed)
        self.time.advance()


def test_the_limits_follow_the_bindings() -> None:
    """The lowest and the highest start point of a space."""
    bindings = Bindings({})
    points = bindings.subscriptions
    assert (points.floor(SPACE), points.ceiling(SPACE)) == (None, 0)
    bindings.change({"one": True})
    bindings.change({"two": False})
    assert (points.floor(SPACE), points.ceiling(SPACE), points.start_points()) == (1, 2, {"one": 1})
    bindings.change({}, "one")
    assert (points.floor(SPACE), points.ceiling(SPACE), points.start_points()) == (2, 2, {})
    bindings.change({}, "two")
    assert points.floor(SPACE) is None
    with pytest.raises(KeyError):
        points.start("two")


def test_a_recovered_binding_keeps_its_start_point() -> None:
    """What was published before the crash still comes."""
    bindings = Bindings({"one": 0})
    points = bindings.subscriptions
    bindings.change({"one": True, "new": True})
    assert (points.start("one"), points.start("new"), points.floor(SPACE)) == (0, 1, 0)
    bindings.change({"one": True}, "one")
    assert points.start("one") == 2


def test_changes_of_durable_bindings_are_told_once() -> None:
    """One that goes and comes again has come; a transient one is nobody's business."""
    bindings = Bindings({"one": 0, "lost": 0})
    points = bindings.subscriptions
    bindings.change({"one": True, "two": True, "not": False})
    assert points.take_changes() == ({"one": 0, "two": 1}, set())
    bindings.change({"one": True, "three": True}, "one", "two", "not")
    bindings.change({"two": False}, "three")
    assert points.take_changes() == ({"one": 2}, {"two", "three"})
    assert points.take_changes() == ({}, set())
