"""An entry of a queue log: where the record of one message lies. Pure: bytes in, bytes out.

    0   u64 position of the record, 0 when there is none
    8   u32 length of the record
    12  u32 checksum: CRC-32C of the 12 bytes before it, begun with the queue's number and the message id; for a delayed
            message it also covers the u64 of the moment at which that is due
    16  u16 ENTRY_MARK
    18  u48 the moment at which a delayed message is due, in ms; 0 for any other, and where it is not known

An entry without a record is 24 zeros. Entries of versions before 0.2 have zeros from byte 12 on: they are read, but
not proved. Damage to a few bits cannot turn one kind into the other: the mark has 10 bits set, which would have to
become zero together with the checksum.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import chain
from struct import Struct
from typing import Final

from crc32c import crc32c

__all__ = [
    "ENTRY_BYTES",
    "NO_ENTRY",
    "Entries",
    "Entry",
    "ReadEntries",
    "pack_entries",
    "unpack_due",
    "unpack_entries",
    "unpack_places",
]

Entry = tuple[int, int]  # position and size of a record
Entries = tuple[list[int], list[int]]  # positions and sizes
ReadEntries = tuple[list[int], list[int], list[int]]  # and the indexes of entries without a checksum
NO_ENTRY: Final[Entry] = (0, 0)
ENTRY_MARK: Final = 0xB7D2 << 48  # in the last 8 bytes, above the moment

_ENTRY: Final = Struct(">QI4xQ")  # all but the checksum
_FIELDS: Final = 3
_MANY: Final = 100
_MANY_ENTRIES: Final = Struct(">" + "QI4xQ" * _MANY)  # so many entries in one call
_MOMENT: Final = Struct(">Q").pack
_MOMENT_MASK: Final = (1 << 48) - 1
_CHECKSUM_MASK: Final = 0xFFFFFFFF
_MARKED: Final = ENTRY_MARK.to_bytes(8, "big")
ENTRY_BYTES: Final = _ENTRY.size
_PLACE_BYTES: Final = 12  # of position and size
_WORDS: Final = 3  # of 64 bits in an entry: position; size and checksum; mark and moment
_HALVES: Final = 6  # of 32 bits: the third is the size, the fourth the checksum
_SWAPS: Final = sys.byteorder == "little"


def pack_entries(queue_number: int, first: int, entries: Sequence[Entry | None], due_ms: Sequence[int] = ()) -> bytes:
    """Return the bytes of the entries of the ids from `first` on. Cost: 0.3 us an entry.

    Shapes: `due_ms` has one moment per entry, 0 where none is known; or it is empty.
    """
    if None in entries:
        return b"".join(
            [
                bytes(ENTRY_BYTES)
                if entry is None
                else pack_entries(queue_number, first + index, [entry], due_ms[index : index + 1])
                for index, entry in enumerate(entries)
            ]
        )
    places: list[int] = list(chain.from_iterable(entries))  # type: ignore[arg-type]
    flat = [ENTRY_MARK] * (_FIELDS * len(entries))
    flat[::_FIELDS] = places[::2]
    flat[1::_FIELDS] = places[1::2]
    if due_ms:
        flat[2::_FIELDS] = [ENTRY_MARK | due for due in due_ms]
    whole = len(flat) - len(flat) % (_FIELDS * _MANY)
    packed = [_MANY_ENTRIES.pack(*flat[at : at + _FIELDS * _MANY]) for at in range(0, whole, _FIELDS * _MANY)]
    packed += [_ENTRY.pack(*flat[at : at + _FIELDS]) for at in range(whole, len(flat), _FIELDS)]
    block = b"".join(packed)
    checksums = _checksums(queue_number, first, block)
    if due_ms:
        checksums = list(map(_with_moment, checksums, due_ms))
    halves = array("I", block)
    halves[3::_HALVES] = _ordered(array("I", checksums))
    return halves.tobytes()


def unpack_entries(queue_number: int, first: int, block: bytes) -> ReadEntries:
    """Return the entries of a block; a damaged one is NO_ENTRY. Cost: 0.3 us an entry."""
    positions, sizes, checksums, marks = _fields(block)
    proved = _checksums(queue_number, first, block)
    if checksums == proved and marks.count(ENTRY_MARK) == len(marks):
        return positions, sizes, []
    unproved: list[int] = []
    for index, mark in enumerate(marks):
        if _proves(checksums[index], mark, proved[index]):
            continue
        if mark or checksums[index]:
            positions[index], sizes[index] = NO_ENTRY
        elif sizes[index]:
            unproved.append(index)
    return positions, sizes, unproved


def unpack_places(block: bytes) -> Entries | None:
    """Return the entries of a block without proof, or None when one has no record or a moment, or was written before
    0.2.

    Whoever reads the records has to check that each is the record of its message.
    """
    words = array("Q", block)
    if words[2::_WORDS].tobytes() != _MARKED * (len(block) // ENTRY_BYTES):
        return None
    return _ordered(words[::_WORDS]).tolist(), _ordered(array("I", block)[2::_HALVES]).tolist()


def unpack_due(queue_number: int, first: int, block: bytes) -> list[int]:
    """Return when the messages of a block are due in ms, 0 for entries without a moment and damaged ones."""
    _, _, checksums, marks = _fields(block)
    proved = _checksums(queue_number, first, block)
    return [
        mark & _MOMENT_MASK if _proves(checksums[index], mark, proved[index]) else 0 for index, mark in enumerate(marks)
    ]


def _fields(block: bytes) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return positions, sizes, checksums, and mark with moments."""
    words, halves = _ordered(array("Q", block)), _ordered(array("I", block))
    return (
        words[::_WORDS].tolist(),
        halves[2::_HALVES].tolist(),
        halves[3::_HALVES].tolist(),
        words[2::_WORDS].tolist(),
    )


def _ordered(numbers: array[int]) -> array[int]:
    """Turn the octets of numbers between the machine's order and that of the file, and return the numbers."""
    if _SWAPS:
        numbers.byteswap()
    return numbers


def _proves(checksum: int, mark: int, proved: int) -> bool:
    """Return whether the checksum of an entry is right, given that of its position and size."""
    return mark & ~_MOMENT_MASK == ENTRY_MARK and checksum == _with_moment(proved, mark & _MOMENT_MASK)


def _with_moment(checksum: int, due_ms: int) -> int:
    """Return the checksum of an entry, given that of its position and size."""
    return crc32c(_MOMENT(due_ms), checksum) if due_ms else checksum


def _checksums(queue_number: int, first: int, block: bytes) -> list[int]:
    """Return the checksum of each entry of a block, whose own checksums are not looked at."""
    seed = crc32c(queue_number.to_bytes(8, "big")) + first
    checksums: list[int] = []
    for at in range(0, len(block), ENTRY_BYTES):
        checksums.append(crc32c(block[at : at + _PLACE_BYTES], seed & _CHECKSUM_MASK))
        seed += 1
    return checksums
