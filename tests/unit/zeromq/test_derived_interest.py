"""The interest that a bridge announces, derived from that of its subscribers."""

from __future__ import annotations

import random

from broker.zeromq.interest import DerivedInterest


def first(item: str) -> str:
    """Return the first letter, as a coarser thing to ask for."""
    return item[:1]


def test_first_and_last() -> None:
    """Items that derive the same are asked for with the first and withdrawn with the last, each item once."""
    interest = DerivedInterest(first, "#", 10)
    interest.add("ab")
    interest.add("ab")
    assert interest.take() == (["a"], [])
    interest.add("ac")
    interest.remove("ab")
    interest.remove("ab")
    interest.remove("never")
    assert interest.take() == ([], [])
    interest.remove("ac")
    assert interest.take() == ([], ["a"])
    assert len(interest) == 0


def test_everything_above_the_limit_and_back_with_room() -> None:
    """Above the limit it asks for everything before the rest goes, and for the rest again at three quarters."""
    interest = DerivedInterest(str, "#", 4)
    for item in "abcd":
        interest.add(item)
    assert interest.take() == (["a", "b", "c", "d"], [])
    interest.add("e")
    assert interest.take() == (["#"], ["a", "b", "c", "d"])
    interest.remove("e")
    assert interest.take() == ([], []), "a peer at the limit would let it flap"
    interest.remove("d")
    assert interest.take() == (["a", "b", "c"], ["#"])


def test_restart_asks_for_all() -> None:
    """A side that has forgotten everything is asked again; what was removed meanwhile is not withdrawn."""
    interest = DerivedInterest(str, "#", 4)
    for item in "abc":
        interest.add(item)
    interest.take()
    interest.remove("b")
    interest.restart()
    added, removed = interest.take()
    assert (sorted(added), removed) == (["a", "c"], [])
    interest.clear()
    assert sorted(interest.take()[1]) == ["a", "c"]


def test_what_is_asked_for_is_what_is_wanted() -> None:
    """After any changes, taken at any moments, the union of the answers is what the items derive."""
    source = random.Random(1)
    for _ in range(200):
        interest = DerivedInterest(first, "#", source.randint(1, 6))
        items: set[str] = set()
        asked: set[str] = set()
        for _ in range(60):
            item = source.choice("abcdefgh") + source.choice("xy")
            if source.random() < 0.5:
                interest.add(item)
                items.add(item)
            else:
                interest.remove(item)
                items.discard(item)
            if source.random() < 0.3:
                added, removed = interest.take()
                assert not asked & set(added)
                assert set(removed) <= asked
                asked = (asked | set(added)) - set(removed)
                assert asked == ({"#"} if interest.is_everything else set(map(first, items)))
