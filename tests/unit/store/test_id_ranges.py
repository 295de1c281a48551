"""Ranges of ids behave like a set of ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.store.entry_buffer import IdRanges

CHANGES = st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 30)), max_size=30)


@given(CHANGES)
def test_ranges_are_a_set_of_ids(changes: list[tuple[bool, int, int]]) -> None:
    """After any additions and removals the ranges equal the set, in as few ranges as possible."""
    ranges, ids = IdRanges(), set[int]()
    for adds, first, end in changes:
        if adds:
            ranges.add(first, end)
            ids.update(range(first, end))
        else:
            ranges.remove(first, end)
            ids.difference_update(range(first, end))
    held = {number for number in range(31) if ranges.overlaps(number, number + 1)}
    assert held == ids
    assert bool(ranges) == bool(ids)
    assert ranges.borders == [number for number in range(32) if (number in ids) != (number - 1 in ids)]
    for first in range(0, 31, 5):
        assert ranges.overlaps(first, first + 5) == any(number in ids for number in range(first, first + 5))
        for end in range(first, 31, 3):
            inside = [number for start, stop in ranges.within(first, end) for number in range(start, stop)]
            assert inside == [number for number in range(first, end) if number in ids]
