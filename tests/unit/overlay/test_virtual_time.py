"""Virtual time and its vectors."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.overlay.virtual_time import RESERVE, VirtualTime, later, reaches


@given(st.lists(st.one_of(st.integers(1, 3 * RESERVE), st.just("crash"))))
def test_virtual_time_never_returns_to_a_time_through_crashes(steps: list[int | str]) -> None:
    """After a crash with the persisted bound the clock is later than ever before."""
    clock, latest = VirtualTime(), 0
    for step in steps:
        if step == "crash":
            clock = VirtualTime(clock.bound)
            assert clock.now > latest
        else:
            for _ in range(int(step)):
                assert clock.advance() > latest
                latest = clock.now - 1
        assert latest < clock.now <= clock.bound


def test_the_bound_changes_seldom() -> None:
    """One write of the bound serves very many ticks."""
    clock = VirtualTime()
    bounds = set()
    for _ in range(10 * RESERVE):
        bounds.add(clock.bound)
        clock.advance()
    assert len(bounds) == 10


def test_a_vector_reaches_another_in_every_element() -> None:
    """A leaf that a vector does not name has 0."""
    assert reaches({"a": 2, "b": 1}, {"a": 2})
    assert reaches({}, {"a": 0})
    assert not reaches({"a": 2}, {"a": 1, "b": 1})
    assert not reaches({"a": 1}, {"a": 2})


def test_the_later_of_two_vectors_has_the_maximum_of_each_element() -> None:
    """Neither vector is changed."""
    one, other = {"a": 2, "b": 1}, {"b": 3, "c": 1}
    assert later(one, other) == {"a": 2, "b": 3, "c": 1}
    assert (one, other) == ({"a": 2, "b": 1}, {"b": 3, "c": 1})
