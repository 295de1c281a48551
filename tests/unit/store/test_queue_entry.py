"""Entries of queue logs: their checksum, and entries of older versions, which have none."""

from __future__ import annotations

from struct import Struct

import pytest

from broker.store.queue_entry import ENTRY_BYTES, Entry, pack_entries, unpack_due, unpack_entries

ENTRIES: list[Entry | None] = [(place << 32 | 64 + place, 100 + place) for place in range(1, 251)]
OLD = Struct(">QI12x")


def old_format(entries: list[Entry | None]) -> bytes:
    """Return entries in the format of versions before 0.2."""
    return b"".join([OLD.pack(*(entry or (0, 0))) for entry in entries])


def test_entries_come_back() -> None:
    """Packed entries are unpacked and verified, including entries without a position."""
    for entries in (ENTRIES, [*ENTRIES[:7], None, *ENTRIES[8:]], [None], []):
        places = [entry or (0, 0) for entry in entries]
        positions, sizes, unproved = unpack_entries(7, 9, pack_entries(7, 9, entries))
        assert list(zip(positions, sizes, strict=True)) == places
        assert unproved == []


def test_moments_come_back() -> None:
    """Due times are unpacked with their entries; damage invalidates both."""
    due_ms = [0, 1 << 47, *range(1, len(ENTRIES) - 1)]
    for entries in (ENTRIES, [*ENTRIES[:7], None, *ENTRIES[8:]]):
        block = pack_entries(7, 9, entries, due_ms)
        places = [entry or (0, 0) for entry in entries]
        positions, sizes, unproved = unpack_entries(7, 9, block)
        assert list(zip(positions, sizes, strict=True)) == places
        assert unproved == []
        told = [due if entry else 0 for entry, due in zip(entries, due_ms, strict=True)]
        assert unpack_due(7, 9, block) == told
        assert not any(unpack_due(8, 9, block))
    assert not any(unpack_due(7, 9, old_format(ENTRIES)))


@pytest.mark.parametrize("due_ms", [0, 1 << 41])
def test_a_flipped_bit_makes_no_entry(due_ms: int) -> None:
    """An entry with any flipped bit is invalid, and is taken neither for the old format nor for another due time."""
    block = bytearray(pack_entries(7, 9, ENTRIES[:1], [due_ms]))
    for bit in range(ENTRY_BYTES * 8):
        block[bit // 8] ^= 1 << bit % 8
        positions, sizes, unproved = unpack_entries(7, 9, bytes(block))
        assert (positions[0], sizes[0]) == (0, 0), f"bit {bit}"
        assert unproved == []
        assert unpack_due(7, 9, bytes(block)) == [0]
        block[bit // 8] ^= 1 << bit % 8


def test_sectors_of_zeros_make_no_other_entry() -> None:
    """An entry that starts or ends in zeros is invalid or unchanged."""
    whole = pack_entries(7, 9, ENTRIES[:1])
    for cut in (8, 16):  # the possible sector boundaries
        for block in (whole[:cut] + bytes(ENTRY_BYTES - cut), bytes(cut) + whole[cut:]):
            positions, sizes, _ = unpack_entries(7, 9, block)
            assert not sizes[0] or (positions[0], sizes[0]) == ENTRIES[0]


def test_an_entry_belongs_to_its_message() -> None:
    """An entry under another id or queue is invalid."""
    block = pack_entries(7, 9, ENTRIES)
    assert not any(unpack_entries(7, 10, block)[1])
    assert not any(unpack_entries(8, 9, block)[1])


def test_the_old_format_is_read_beside_the_new_one() -> None:
    """Entries without a checksum are read as before and told from those with one."""
    block = pack_entries(7, 9, ENTRIES[:3]) + old_format([*ENTRIES[3:5], None]) + pack_entries(7, 15, ENTRIES[6:8])
    positions, sizes, unproved = unpack_entries(7, 9, block)
    expected = [*ENTRIES[:5], (0, 0), *ENTRIES[6:8]]
    assert list(zip(positions, sizes, strict=True)) == expected
    assert unproved == [3, 4]
