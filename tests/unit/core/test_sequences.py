"""The sequence numbers that a producer has used: a set, however it is stored."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.publishing.sequences import BLOCK_NUMBERS, Room, Sequences

NEAR_BORDERS = st.builds(
    lambda block, place: block * BLOCK_NUMBERS + place,
    st.sampled_from([0, 1, 2, 2**47 - 1]),
    st.sampled_from([0, 1, 2, 3, 4, 5, 1000, BLOCK_NUMBERS - 2, BLOCK_NUMBERS - 1]),
)


def copy_of(sequences: Sequences) -> tuple[Sequences, Room]:
    """Return a copy that was written as text and read back, and its room."""
    room = Room()
    again = Sequences(room)
    for written in Sequences.written(sequences.copy()):
        again.read(json.loads(json.dumps(written)))
    return again, room


@given(st.lists(st.one_of(NEAR_BORDERS, st.integers(0, 2**63 - 1)), max_size=60), st.integers(0, 60))
def test_it_is_a_set(numbers: list[int], at: int) -> None:
    """A number is new exactly once, also after writing, reading and shrinking."""
    room = Room()
    sequences = Sequences(room)
    seen: set[int] = set()
    for place, number in enumerate(numbers):
        if place == at:
            sequences.shrink(0)
            sequences, room = copy_of(sequences)
        assert (number in sequences) is (number in seen)
        assert sequences.add(number, place) is (number not in seen)
        seen.add(number)
    assert room.used_bytes == sum(block.size_bytes for block in sequences.blocks.values())


@given(st.lists(st.tuples(NEAR_BORDERS, st.integers(1, 70_000)), max_size=4))
def test_runs_are_added_as_their_numbers(runs: list[tuple[int, int]]) -> None:
    """A run adds exactly its numbers, also across blocks and over existing numbers."""
    sequences = Sequences(Room())
    for first, count in runs:
        sequences.add_range(first, first + count, 1)
    for first, count in runs:
        for number in (first, first + count // 2, first + count - 1):
            assert number in sequences
        for number in (first - 1, first + count):
            assert (number in sequences) is any(one <= number < one + more for one, more in runs)


@pytest.mark.parametrize("start", [0, 1, 500])
def test_numbers_in_order_take_no_bits(start: int) -> None:
    """Full blocks are stored as ranges; a gap turns its block into bits, and filling the gap turns it back."""
    room = Room()
    sequences = Sequences(room)
    for number in range(start, 3 * BLOCK_NUMBERS):
        sequences.add(number, 1)
    plain_bytes = room.used_bytes
    assert [block.bits for block in sequences.blocks.values()] == [None] * 3
    for number in Random(1).sample(range(3 * BLOCK_NUMBERS, 4 * BLOCK_NUMBERS), BLOCK_NUMBERS):
        assert sequences.add(number, 1)
    assert room.used_bytes > plain_bytes + 8192
    sequences.shrink(0)
    assert (len(sequences.blocks), room.used_bytes) == (4, plain_bytes * 4 // 3)


def test_blocks_are_forgotten_when_they_were_not_used() -> None:
    """Numbers of a block that was unused since a given time are free again, and so is its room."""
    room = Room()
    sequences = Sequences(room)
    for number, now_ms in ((1, 10), (BLOCK_NUMBERS, 20), (BLOCK_NUMBERS + 7, 30)):
        sequences.add(number, now_ms)
    sequences.forget(30)
    assert (1 in sequences, BLOCK_NUMBERS in sequences) == (False, True)
    sequences.forget(31)
    assert (room.used_bytes, sequences.add(BLOCK_NUMBERS, 40)) == (0, True)
