"""Entries of a queue log: the position and length of each message's record. Pure: bytes in, bytes out.

Each message has a place of 24 bytes. A single entry fills one place:

    0   u64 position of the record
    8   u32 length of the record
    12  u32 checksum: CRC-32C of the 12 bytes before it, seeded with the queue's number and the message id;
            that of a delayed message also covers the moment at which it is due, as a u64
    16  u16 SINGLE
    18  u48 the moment at which a delayed message is due, in ms; 0 for other messages, and if unknown

A place without a record is 24 zeros.

Neighbours whose records are in one segment form a group, which fills their places and is verified as a whole:

    0   u64 number of the segment
    8   u32 n, the number of messages
    12  u32 checksum: CRC-32C of the 24 * n bytes except these four, seeded with the queue's number and the first id
    16  u16 GROUP
    18  u48 1 if some are delayed, otherwise 0
    24  n times u32 offset of the record in the segment, then n times u32 length of the record; both 0 without a record
        n times u64 moment, if some are delayed
        octets 0xFF up to the end of the places

No group crosses a multiple of CELL_IDS, so a reader that starts there finds all groups. A group of which only a part is
overwritten can no longer be verified, so the writer splits it first (`split_groups`).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Final

from crc32c import crc32c

Entry = tuple[int, int]  # position and size of a record
Entries = tuple[list[int], list[int]]  # positions and sizes, both 0 for a message without a record
NO_ENTRY: Final[Entry] = (0, 0)
CELL_IDS: Final = 256
GROUP_MIN: Final = 4  # fewer messages are faster as single entries

_SINGLE: Final = 0xB7D2
_GROUP: Final = 0xD5A6
_DELAYED: Final = 1
_ENTRY: Final = Struct(">QIIQ")
_PLACE: Final = Struct(">QI")
_FIELDS: Final = Struct(">II")  # of a group: number of messages and checksum
_WORD: Final = Struct(">Q")
ENTRY_BYTES: Final = _ENTRY.size
_MARK_AT: Final = 16
_MARK_SHIFT: Final = 48
_MOMENT_MASK: Final = (1 << _MARK_SHIFT) - 1
_CHECKSUM_MASK: Final = 0xFFFFFFFF
_OFFSET_BYTES: Final = 4  # an offset; also a length, and a checksum
_MOMENT_BYTES: Final = 8
_GROUP_MARK: Final = _GROUP.to_bytes(2, "big")
_FILLER: Final = b"\xff"
_SWAPS: Final = sys.byteorder == "little"
_HIGH: Final = 1 if _SWAPS else 0  # the index of the upper half of 64 bits


def pack_entries(queue_number: int, first: int, entries: Entries, due_ms: Sequence[int] = ()) -> bytes:
    """Return the bytes of the entries of the ids from `first` on. Cost: 0.05 us an entry in groups, 1 us a single one.

    Shapes: `due_ms` lists a moment per entry, or 0 where none is known; or it is empty.
    """
    positions, sizes = entries
    seed = _seed(queue_number, first)
    count = len(positions)
    cells: list[bytes] = []
    at = 0
    while at < count:
        stop = min(count, at + CELL_IDS - (first + at) % CELL_IDS)
        cells.append(_pack_cell(seed + at, positions[at:stop], sizes[at:stop], due_ms[at:stop]))
        at = stop
    return b"".join(cells)


def unpack_entries(queue_number: int, first: int, block: bytes, start: int, stop: int) -> Entries:
    """Return the entries with the indexes start <= index < stop of a block; a damaged one is NO_ENTRY.

    Shapes: the block has whole cells, beginning with the id `first`, a multiple of CELL_IDS. Cost: as `pack_entries`.
    """
    positions: list[int] = []
    sizes: list[int] = []
    seed = _seed(queue_number, first)
    for index, grouped in _groups_and_singles(seed, block, start, stop):
        at = index * ENTRY_BYTES
        if grouped:
            chosen = slice(max(start - index, 0), stop - index)
            more = _unpack_group(block, at, grouped)
            positions += more[0][chosen]
            sizes += more[1][chosen]
            continue
        position, size, checksum, mark = _unpack(block, at)
        if not _is_intact(block, at, checksum, mark, seed + index):
            position, size = NO_ENTRY
        positions.append(position)
        sizes.append(size)
    return positions, sizes


def unpack_due(queue_number: int, first: int, block: bytes, start: int, stop: int) -> list[int]:
    """Return when the messages start <= index < stop of a block are due, in ms; 0 without a moment or if damaged.

    Shapes: the block is as for `unpack_entries`.
    """
    due_ms: list[int] = []
    seed = _seed(queue_number, first)
    for index, grouped in _groups_and_singles(seed, block, start, stop):
        at = index * ENTRY_BYTES
        if grouped:
            due_ms += _unpack_moments(block, at, grouped)[max(start - index, 0) : stop - index]
        else:
            _, _, checksum, mark = _unpack(block, at)
            due_ms.append(mark & _MOMENT_MASK if _is_intact(block, at, checksum, mark, seed + index) else 0)
    return due_ms


def split_groups(queue_number: int, first: int, cell: bytes, start: int, stop: int) -> bytes:
    """Return the bytes of a cell; groups that the range start <= index < stop would cut are split into single entries.

    Shapes: `first` is the first id of the cell. A writer of the entries `start` to `stop` also writes other entries
        that have changed.
    """
    if _GROUP_MARK not in cell:
        return cell
    seed = _seed(queue_number, first)
    split = cell
    for index, grouped in _groups_and_singles(seed, cell, 0, CELL_IDS):
        end = index + grouped
        if grouped and (index < start < end or index < stop < end):
            at, behind = index * ENTRY_BYTES, end * ENTRY_BYTES
            positions, sizes = _unpack_group(cell, at, grouped)
            singles = _pack_singles(seed + index, positions, sizes, _unpack_moments(cell, at, grouped))
            split = split[:at] + singles + split[behind:]
    return split


def _pack_cell(seed: int, positions: list[int], sizes: list[int], due_ms: Sequence[int]) -> bytes:
    """Return the bytes of entries within one cell. Shapes: `seed` is that of the first entry's checksum."""
    count = len(positions)
    segments, offsets = _halves(positions)
    segment = max(segments)
    if count < GROUP_MIN or not any(sizes) or segments.count(segment) + sizes.count(0) < count:
        return _pack_singles(seed, positions, sizes, due_ms)
    delayed = any(due_ms)
    parts = [
        _WORD.pack(_GROUP << _MARK_SHIFT | (_DELAYED if delayed else 0)),
        _file_order(offsets).tobytes(),
        _file_order(array("I", sizes)).tobytes(),
    ]
    if delayed:
        parts.append(_file_order(array("Q", due_ms)).tobytes())
    rest = b"".join(parts).ljust(ENTRY_BYTES * count - _MARK_AT, _FILLER)
    head = _PLACE.pack(segment, count)
    return head + _checksum(rest, _checksum(head, seed)).to_bytes(_OFFSET_BYTES, "big") + rest


def _pack_singles(seed: int, positions: list[int], sizes: list[int], due_ms: Sequence[int]) -> bytes:
    pieces: list[bytes] = []
    for index, (position, size) in enumerate(zip(positions, sizes, strict=True)):
        if not size:
            pieces.append(bytes(ENTRY_BYTES))
            continue
        due = due_ms[index] if due_ms else 0
        place = _PLACE.pack(position, size)
        checksum = _with_moment(_checksum(place, seed + index), due)
        pieces.append(_ENTRY.pack(position, size, checksum, _SINGLE << _MARK_SHIFT | due))
    return b"".join(pieces)


def _groups_and_singles(seed: int, block: bytes, start: int, stop: int) -> list[tuple[int, int]]:
    """Return (index, length) of each group that overlaps start <= index < stop, and (index, 0) of each other place."""
    found: list[tuple[int, int]] = []
    index = 0
    while index < start:  # a group that begins earlier may reach here
        at = block.find(_GROUP_MARK, index * ENTRY_BYTES + _MARK_AT, start * ENTRY_BYTES)
        if at < 0:
            index = start
            break
        index, misaligned = divmod(at - _MARK_AT, ENTRY_BYTES)
        grouped = 0 if misaligned else _group_at(seed, block, index)
        if index + grouped > start:
            found.append((index, grouped))
        index += grouped or 1
    while index < stop:
        grouped = _group_at(seed, block, index)
        found.append((index, grouped))
        index += grouped or 1
    return found


def _group_at(seed: int, block: bytes, index: int) -> int:
    """Return the number of messages of the intact group that begins at an index, or 0 if none does."""
    at = index * ENTRY_BYTES
    if block[at + _MARK_AT : at + _MARK_AT + 2] != _GROUP_MARK:
        return 0
    fields: tuple[int, int] = _FIELDS.unpack_from(block, at + 8)
    count, checksum = fields
    if count < GROUP_MIN:  # compiled, a slice of bytes must not end before it begins
        return 0
    head, rest = block[at : at + _PLACE.size], block[at + _MARK_AT : at + count * ENTRY_BYTES]
    return count if checksum == _checksum(rest, _checksum(head, seed + index)) else 0


def _unpack_group(block: bytes, at: int, count: int) -> Entries:
    segment: tuple[int] = _WORD.unpack_from(block, at)
    begin = at + ENTRY_BYTES
    middle, end = begin + _OFFSET_BYTES * count, begin + 2 * _OFFSET_BYTES * count
    offsets = _file_order(array("I", block[begin:middle]))
    sizes = _file_order(array("I", block[middle:end])).tolist()
    positions = _joined(segment[0], offsets)
    if 0 in sizes:
        positions = [position if size else 0 for position, size in zip(positions, sizes, strict=True)]
    return positions, sizes


def _halves(positions: list[int]) -> tuple[array[int], array[int]]:
    """Return the segments and the offsets of positions. It loops only within `array`, because positions are many."""
    halves = array("I", array("Q", positions).tobytes())
    return halves[_HIGH::2], halves[1 - _HIGH :: 2]


def _joined(segment: int, offsets: array[int]) -> list[int]:
    halves = array("I", bytes(2 * _OFFSET_BYTES * len(offsets)))
    halves[_HIGH::2] = array("I", [segment]) * len(offsets)
    halves[1 - _HIGH :: 2] = offsets
    return array("Q", halves.tobytes()).tolist()


def _unpack_moments(block: bytes, at: int, count: int) -> list[int]:
    mark: tuple[int] = _WORD.unpack_from(block, at + _MARK_AT)
    if not mark[0] & _DELAYED:
        return [0] * count
    begin = at + ENTRY_BYTES + 2 * _OFFSET_BYTES * count
    return _file_order(array("Q", block[begin : begin + _MOMENT_BYTES * count])).tolist()


def _unpack(block: bytes, at: int) -> tuple[int, int, int, int]:
    """Return position, size, checksum, and mark with moment of a single entry."""
    fields: tuple[int, int, int, int] = _ENTRY.unpack_from(block, at)
    return fields


def _is_intact(block: bytes, at: int, checksum: int, mark: int, seed: int) -> bool:
    if mark >> _MARK_SHIFT != _SINGLE:
        return False
    return checksum == _with_moment(_checksum(block[at : at + _PLACE.size], seed), mark & _MOMENT_MASK)


def _seed(queue_number: int, message_id: int) -> int:
    """Return the seed of an entry's checksum; the seed of the next message is greater by one."""
    return crc32c(queue_number.to_bytes(8, "big")) + message_id


def _checksum(piece: bytes, seed: int) -> int:
    checksum: int = crc32c(piece, seed & _CHECKSUM_MASK)
    return checksum


def _with_moment(checksum: int, due_ms: int) -> int:
    """Return the checksum of an entry, given that of its position and size."""
    return _checksum(_WORD.pack(due_ms), checksum) if due_ms else checksum


def _file_order(numbers: array[int]) -> array[int]:
    """Convert numbers in place between the byte orders of the machine and the file, and return them."""
    if _SWAPS:
        numbers.byteswap()
    return numbers
