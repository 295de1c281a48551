"""The destinations of one binding key: a tuple when few, a dict when many, each with a count."""

import random
from collections import Counter

import pytest

from broker.routing.destinations import TUPLE_MAX, Target
from broker.routing.exchange_types import make_exchange


@pytest.mark.parametrize("kinds", [1, TUPLE_MAX, TUPLE_MAX + 1, 3 * TUPLE_MAX])
def test_destinations_are_counted(kinds: int) -> None:
    """A destination stays while one binding names it; only the first and the last binding report a change."""
    source = random.Random(kinds)
    target = Target()
    held: Counter[str] = Counter()
    for _ in range(400):
        destination = f"q{source.randrange(kinds)}"
        if held[destination] and source.random() < 0.5:
            assert target.remove(destination) == (held[destination] == 1)
            held[destination] -= 1
        else:
            assert target.add(destination) == (held[destination] == 0)
            held[destination] += 1
        assert set(target.destinations) == set(+held)
        assert len(target.destinations) == len(+held)


def test_order_is_that_of_the_bindings() -> None:
    """The order is that of the bindings in a tuple, in a dict, and in a tuple again."""
    target = Target()
    for destination in range(TUPLE_MAX):
        target.add(destination)
    assert target.destinations == tuple(range(TUPLE_MAX))
    target.add(TUPLE_MAX)
    assert list(target.destinations) == list(range(TUPLE_MAX + 1))
    for destination in range(1, TUPLE_MAX):
        target.remove(destination)
    assert target.destinations == (0, TUPLE_MAX)


def test_what_was_handed_out_does_not_change() -> None:
    """A returned tuple of destinations does not change later."""
    target = Target()
    target.add("q1")
    read = target.destinations
    target.add("q2")
    target.add("q2")
    assert read == ("q1",)


def test_many_give_their_memory_back() -> None:
    """A target that had 10,000 destinations is as small as one that never had them."""
    target, small = Target(), Target()
    for destination in range(10_000):
        target.add(destination)
    for destination in range(2, 10_000):
        target.remove(destination)
    small.add(0)
    small.add(1)
    assert target.__sizeof__() == small.__sizeof__()


@pytest.mark.parametrize("kinds", [0, 1, TUPLE_MAX + 1])
def test_a_stranger_is_refused(kinds: int) -> None:
    """Removing an unknown destination raises in both forms."""
    target = Target()
    for destination in range(kinds):
        target.add(destination)
    with pytest.raises(KeyError):
        target.remove("stranger")
    assert len(target.destinations) == kinds


def test_wide_routes_share_their_destinations_until_one_changes() -> None:
    """The routes of many keys hold one tuple; after a bind or an unbind of its pattern, another one."""
    exchange = make_exchange("x", "topic")
    queues = [f"q{number}" for number in range(TUPLE_MAX + 1)]
    for queue in queues:
        exchange.bind(queue, "a.*", {})
    shared = exchange.route("a.1").destinations
    assert shared == tuple(queues)
    assert exchange.route("a.2").destinations is shared
    exchange.bind("late", "a.*", {})
    assert exchange.route("a.3").destinations == (*queues, "late")
    exchange.unbind("q0", "a.*", {})
    assert exchange.route("a.4").destinations == (*queues[1:], "late")
