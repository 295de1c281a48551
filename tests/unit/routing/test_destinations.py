"""The destinations of one binding key: few in a tuple, many in a dict, each counted."""

import random
from collections import Counter

import pytest

from broker.routing.destinations import FEW, Target


@pytest.mark.parametrize("kinds", [1, FEW, FEW + 1, 3 * FEW])
def test_destinations_are_counted(kinds: int) -> None:
    """Whatever comes and goes, a destination is there while one binding names it, and new and gone are told once."""
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
    """In a tuple, in a dict, and back in a tuple."""
    target = Target()
    for destination in range(FEW):
        target.add(destination)
    assert target.destinations == tuple(range(FEW))
    target.add(FEW)
    assert list(target.destinations) == list(range(FEW + 1))
    for destination in range(1, FEW):
        target.remove(destination)
    assert target.destinations == (0, FEW)


def test_what_was_handed_out_does_not_change() -> None:
    """A tuple of destinations stays as it was read."""
    target = Target()
    target.add("q1")
    read = target.destinations
    target.add("q2")
    target.add("q2")
    assert read == ("q1",)


def test_many_give_their_memory_back() -> None:
    """A target that had 10,000 destinations is no larger than one that never had them."""
    target, small = Target(), Target()
    for destination in range(10_000):
        target.add(destination)
    for destination in range(2, 10_000):
        target.remove(destination)
    small.add(0)
    small.add(1)
    assert target.__sizeof__() == small.__sizeof__()


@pytest.mark.parametrize("kinds", [0, 1, FEW + 1])
def test_a_stranger_is_refused(kinds: int) -> None:
    """Removing what is not there raises, in either form."""
    target = Target()
    for destination in range(kinds):
        target.add(destination)
    with pytest.raises(KeyError):
        target.remove("stranger")
    assert len(target.destinations) == kinds
