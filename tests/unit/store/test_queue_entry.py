"""Entries of queue logs: single ones and groups, and their checksums."""

from __future__ import annotations

import pytest

from broker.store.queue_entry import (
    CELL_IDS,
    ENTRY_BYTES,
    Entries,
    Entry,
    pack_entries,
    split_groups,
    unpack_due,
    unpack_entries,
)

SEGMENT = 3 << 32
GROUPED: list[Entry] = [(SEGMENT | 64 + 7 * place, 100 + place) for place in range(CELL_IDS + 44)]
SCATTERED: list[Entry] = [(place << 32 | 64 + place, 100 + place) for place in range(1, 251)]  # a segment each
SPILLED: list[Entry] = [(1 << 63 | 5 << 32 | place, 9) for place in range(20)]
FIRST = 2 * CELL_IDS


def columns(entries: list[Entry]) -> Entries:
    """Return entries as positions and sizes."""
    return [position for position, _ in entries], [size for _, size in entries]


def packed(entries: list[Entry], due_ms: list[int] | None = None, *, at: int = 0, queue: int = 7) -> bytes:
    """Return whole cells with the entries, from index `at` on."""
    block = bytes(at * ENTRY_BYTES) + pack_entries(queue, FIRST + at, columns(entries), due_ms or ())
    return block + bytes(-len(block) % (CELL_IDS * ENTRY_BYTES))


def unpacked(block: bytes, start: int = 0, stop: int = 0, *, queue: int = 7, first: int = FIRST) -> list[Entry]:
    """Return the entries of whole cells; none is of an older version."""
    positions, sizes = unpack_entries(queue, first, block, start, stop or len(block) // ENTRY_BYTES)
    return list(zip(positions, sizes, strict=True))


@pytest.mark.parametrize("entries", [GROUPED, SCATTERED, SPILLED, GROUPED[:3], [(0, 0)], []])
@pytest.mark.parametrize("missing", [0, 1, 4])
@pytest.mark.parametrize("at", [0, 1, CELL_IDS - 2])
def test_entries_come_back(entries: list[Entry], missing: int, at: int) -> None:
    """Packed entries are unpacked and proved, from and to any index, including entries without a record."""
    entries = [(0, 0) if missing and place % 5 < missing else entry for place, entry in enumerate(entries)]
    block = packed(entries, at=at)
    assert unpacked(block)[at : at + len(entries)] == entries
    for start in range(0, len(entries), 31):
        for stop in range(start + 1, len(entries) + 1, 47):
            assert unpacked(block, at + start, at + stop) == entries[start:stop], (start, stop)


def test_neighbours_are_one_group() -> None:
    """The entries of a cell whose records lie in one segment have a checksum in common, those of others have their own:
    one flipped bit costs the whole group, or one entry.
    """
    gaps = [(0, 0) if place % 5 == 1 else entry for place, entry in enumerate(GROUPED[:CELL_IDS])]
    for entries, lost in ((GROUPED[:CELL_IDS], CELL_IDS), (gaps, CELL_IDS), (SCATTERED, 1)):
        block = bytearray(packed(entries))
        block[100 * ENTRY_BYTES] ^= 1
        assert unpacked(bytes(block))[: len(entries)].count((0, 0)) == lost
    assert unpacked(packed(GROUPED))[CELL_IDS:][:44] == GROUPED[CELL_IDS:]


@pytest.mark.parametrize("entries", [GROUPED, SCATTERED])
@pytest.mark.parametrize("due", [range(1, 301), [0, 1 << 47, *range(298)], [0] * 300])
def test_moments_come_back(entries: list[Entry], due: list[int] | range) -> None:
    """Due times are unpacked with their entries; damage invalidates both."""
    for missing in (False, True):
        found = [(0, 0) if missing and place == 7 else entry for place, entry in enumerate(entries)]
        due_ms = [moment if entry[1] else 0 for moment, entry in zip(due, found, strict=False)]
        block = packed(found, due_ms, at=3)
        assert unpacked(block, 3, 3 + len(found)) == found
        for start in (0, 5, 200):
            assert unpack_due(7, FIRST, block, 3 + start, 3 + len(found)) == due_ms[start:]
        assert not any(unpack_due(8, FIRST, block, 0, len(block) // ENTRY_BYTES))


@pytest.mark.parametrize(
    ("entries", "due_ms"),
    [(SCATTERED[:1], [0]), (SCATTERED[:1], [1 << 41]), (GROUPED[:6], []), (GROUPED[:6], [1 << 41, 0, 5, 6, 7, 8])],
)
def test_a_flipped_bit_makes_no_entry(entries: list[Entry], due_ms: list[int]) -> None:
    """An entry, or a group, with any flipped bit is invalid, also in what fills it up, and has no other due time."""
    count = len(entries)
    block = bytearray(packed(entries, due_ms))
    for bit in range(count * ENTRY_BYTES * 8):
        block[bit // 8] ^= 1 << bit % 8
        assert unpacked(bytes(block), 0, count) == [(0, 0)] * count, f"bit {bit}"
        assert unpack_due(7, FIRST, bytes(block), 0, count) == [0] * count
        block[bit // 8] ^= 1 << bit % 8


def test_sectors_of_zeros_make_no_other_entry() -> None:
    """An entry that starts or ends in zeros is invalid or unchanged; a group is invalid."""
    for entries in (SCATTERED[:1], GROUPED[:50]):
        whole = packed(entries)
        for cut in range(8, ENTRY_BYTES * len(entries), 8):  # possible sector boundaries
            for block in (whole[:cut] + bytes(len(whole) - cut), bytes(cut) + whole[cut:]):
                found = unpacked(block)[: len(entries)]
                assert found == [(0, 0)] * len(entries) or (found == entries and block == whole)


def test_an_entry_belongs_to_its_message() -> None:
    """An entry under another id or queue is invalid."""
    for entries in (GROUPED, SCATTERED):
        block = packed(entries)
        assert set(unpacked(block, first=FIRST + CELL_IDS)) == {(0, 0)}
        assert set(unpacked(block, queue=8)) == {(0, 0)}


@pytest.mark.parametrize(("start", "stop"), [(12, 13), (10, 12), (39, 41), (0, 11), (10, 40), (40, 200), (0, 256)])
def test_a_group_that_a_write_touches_becomes_single_entries(start: int, stop: int) -> None:
    """Entries beside those that are written stay what they are, with their moments."""
    due_ms = [0 if place % 3 else 1 + place for place in range(30)]
    cell = bytearray(packed([(SEGMENT, 5)] * 10 + GROUPED[:30], [0] * 10 + due_ms))
    cell[10 * ENTRY_BYTES : 40 * ENTRY_BYTES] = pack_entries(7, FIRST + 10, columns(GROUPED[:30]), due_ms)
    cell[: 10 * ENTRY_BYTES] = pack_entries(7, FIRST, ([SEGMENT] * 10, [5] * 10))
    before = unpacked(bytes(cell))
    moments = unpack_due(7, FIRST, bytes(cell), 0, CELL_IDS)
    assert before[:40] == [(SEGMENT, 5)] * 10 + GROUPED[:30]
    touched = bytearray(split_groups(7, FIRST, bytes(cell), start, stop))
    assert unpacked(bytes(touched)) == before
    assert (touched == cell) == ((start, stop) in {(10, 40), (40, 200), (0, 256)})
    touched[start * ENTRY_BYTES : stop * ENTRY_BYTES] = bytes((stop - start) * ENTRY_BYTES)
    assert unpacked(bytes(touched)) == before[:start] + [(0, 0)] * (stop - start) + before[stop:]
    kept = moments[:start] + [0] * (stop - start) + moments[stop:]
    assert unpack_due(7, FIRST, bytes(touched), 0, CELL_IDS) == kept
