"""The virtual time of a leaf."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.overlay.virtual_time import RESERVE, VirtualTime


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
