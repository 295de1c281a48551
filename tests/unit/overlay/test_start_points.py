"""The start points of bindings."""

from __future__ import annotations

import pytest

from broker.overlay.packets import Conjunction, Space
from broker.overlay.subscriptions import StartPoints

SPACE = Space("/", "orders")
WANTED = Conjunction(SPACE, "#")


def test_the_limits_follow_the_bindings() -> None:
    """The lowest and the highest start point of a space."""
    points = StartPoints({})
    assert (points.floor(SPACE), points.ceiling(SPACE)) == (None, 0)
    points.change([("one", WANTED, True), ("two", WANTED, False)], (), {"one": 3, "two": 5}.__getitem__)
    assert (points.floor(SPACE), points.ceiling(SPACE), points.durable()) == (3, 5, {"one": 3})
    points.change((), ["one"], lambda _binding: 0)
    assert (points.floor(SPACE), points.ceiling(SPACE), points.durable()) == (5, 5, {})
    points.change((), ["two"], lambda _binding: 0)
    assert points.floor(SPACE) is None
    with pytest.raises(KeyError):
        points.of("two")


def test_a_recovered_binding_keeps_its_start_point() -> None:
    """Messages published before the crash still arrive."""
    points = StartPoints({"one": 3})
    points.change([("one", WANTED, True), ("new", WANTED, True)], (), lambda _binding: 1_025)
    assert (points.of("one"), points.of("new")) == (3, 1_025)
    points.change([("one", WANTED, True)], ["one"], lambda _binding: 1_026)
    assert points.of("one") == 1_026


def test_changes_of_durable_bindings_are_told_once() -> None:
    """One that goes and comes again has come; a transient one is no one's business."""
    points = StartPoints({"one": 3, "lost": 4})
    points.change([("one", WANTED, True), ("two", WANTED, True), ("not", WANTED, False)], (), lambda _binding: 7)
    assert points.take_changes() == ({"one": 3, "two": 7}, set())
    points.change([("one", WANTED, True), ("three", WANTED, True)], ["one", "two", "not"], lambda _binding: 8)
    points.change([("two", WANTED, False)], ["three"], lambda _binding: 9)
    assert points.take_changes() == ({"one": 8}, {"two", "three"})
    assert points.take_changes() == ({}, set())
