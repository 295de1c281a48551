"""Entries of queue logs: their checksum, and those of versions that had none."""

from __future__ import annotations

from struct import Struct

from broker.store.queue_entry import ENTRY_BYTES, Entry, pack_entries, unpack_entries

ENTRIES: list[Entry | None] = [(place << 32 | 64 + place, 100 + place) for place in range(1, 251)]
OLD = Struct(">QI12x")


def old_format(entries: list[Entry | None]) -> bytes:
    """Returns entries as versions before 0.2 wrote them."""
    return b"".join([OLD.pack(*(entry or (0, 0))) for entry in entries])


def test_entries_come_back() -> None:
    """What is packed is unpacked, entries without a place among it, and every one of them is proved."""
    for entries in (ENTRIES, [*ENTRIES[:7], None, *ENTRIES[8:]], [None], []):
        places = [entry or (0, 0) for entry in entries]
        positions, sizes, unproved = unpack_entries(7, 9, pack_entries(7, 9, entries))
        assert list(zip(positions, sizes, strict=True)) == places
        assert unproved == []


def test_a_flipped_bit_makes_no_entry() -> None:
    """Whatever bit of an entry flips, it is no entry, or says what it said; never one of the old format."""
    block = bytearray(pack_entries(7, 9, ENTRIES[:1]))
    for bit in range(ENTRY_BYTES * 8):
        block[bit // 8] ^= 1 << bit % 8
        positions, sizes, unproved = unpack_entries(7, 9, bytes(block))
        assert (positions[0], sizes[0]) == ((0, 0) if bit < 20 * 8 else ENTRIES[0]), f"bit {bit}"
        assert unproved == []
        block[bit // 8] ^= 1 << bit % 8


def test_sectors_of_zeros_make_no_other_entry() -> None:
    """An entry whose end or beginning became zeros is none, or says what it said."""
    whole = pack_entries(7, 9, ENTRIES[:1])
    for cut in (8, 16):  # where a border between sectors can be
        for block in (whole[:cut] + bytes(ENTRY_BYTES - cut), bytes(cut) + whole[cut:]):
            positions, sizes, _ = unpack_entries(7, 9, block)
            assert not sizes[0] or (positions[0], sizes[0]) == ENTRIES[0]


def test_an_entry_belongs_to_its_message() -> None:
    """The entry of another id, or of another queue, is none."""
    block = pack_entries(7, 9, ENTRIES)
    assert not any(unpack_entries(7, 10, block)[1])
    assert not any(unpack_entries(8, 9, block)[1])


def test_the_old_format_is_read_beside_the_new_one() -> None:
    """Entries without a checksum are read as before, and are told from those that have one."""
    block = pack_entries(7, 9, ENTRIES[:3]) + old_format([*ENTRIES[3:5], None]) + pack_entries(7, 15, ENTRIES[6:8])
    positions, sizes, unproved = unpack_entries(7, 9, block)
    expected = [*ENTRIES[:5], (0, 0), *ENTRIES[6:8]]
    assert list(zip(positions, sizes, strict=True)) == expected
    assert unproved == [3, 4]
