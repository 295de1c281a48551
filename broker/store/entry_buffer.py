"""The parts of queue logs in memory: chunks with too few entries for a file, and the ids whose entries are needed.

Creating a file takes as long as writing hundreds of entries, and on ext4 a hundred times longer once many files have
been removed. Without this buffer, thousands of queues with a few messages each would need one file each.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

CHUNK_MAX_BYTES: Final = 4096  # of one chunk: 170 entries, whose messages took 70 kB or more in memory

Piece = tuple[int, bytes]  # an offset in the chunk's file, and the entries from there on


class EntryBuffer:
    """The chunks of one vhost's queue logs that have no file yet.

    Changes require the lock of the queue logs; any thread may read a chunk in the meantime.
    """

    def __init__(self) -> None:
        # By queue number and chunk, in the order of writing: a later piece replaces an earlier one.
        self._queues: dict[int, dict[int, list[Piece]]] = {}

    def __contains__(self, key: tuple[int, int]) -> bool:
        return key[1] in self._queues.get(key[0], ())

    def add(self, queue_number: int, chunk: int, at: int, block: bytes) -> bool:
        """Add entries at an offset of a chunk; add nothing and return False if the chunk would become too large."""
        pieces = self.pieces(queue_number, chunk)
        if len(block) + sum([len(piece) for _, piece in pieces]) > CHUNK_MAX_BYTES:
            return False
        self._queues.setdefault(queue_number, {}).setdefault(chunk, []).append((at, block))
        return True

    def pieces(self, queue_number: int, chunk: int) -> list[Piece]:
        """Return the pieces of a chunk as written, or an empty list if the chunk is not in the buffer."""
        return self._queues.get(queue_number, {}).get(chunk, [])

    def read(self, queue_number: int, chunk: int, at: int, size: int) -> bytes | None:
        """Return a range of a chunk, with zeros for missing entries, or None if the chunk is not in the buffer."""
        pieces = self._queues.get(queue_number, {}).get(chunk)
        if pieces is None:
            return None
        found = bytearray(size)
        for start, block in pieces:
            skipped = max(at - start, 0)
            part = block[skipped : at + size - start] if start < at + size else b""
            if part:
                begin = start + skipped - at
                found[begin : begin + len(part)] = part
        return bytes(found)

    def drop(self, queue_number: int, chunk: int, at: int, stop: int) -> None:
        """Drop the pieces that lie entirely within a range of offsets. Cost: O(pieces of the chunk)."""
        chunks = self._queues.get(queue_number, {})
        if chunk in chunks:
            chunks[chunk] = [piece for piece in chunks[chunk] if piece[0] < at or piece[0] + len(piece[1]) > stop]

    def discard(self, queue_number: int, chunk: int) -> None:
        """Drop a chunk, if it is in the buffer."""
        chunks = self._queues.get(queue_number)
        if chunks is not None and chunks.pop(chunk, None) is not None and not chunks:
            del self._queues[queue_number]

    def chunks(self, queue_number: int) -> tuple[int, ...]:
        return tuple(self._queues.get(queue_number, ()))


class IdRanges:
    """The ids of one queue whose entries are still needed.

    Shapes: ``borders`` ascends: first id, end, first id, end ... with a gap between each end and the next first id.
    Cost: O(ranges); a backlog without gaps is one range.
    """

    __slots__ = ("borders",)

    def __init__(self) -> None:
        self.borders: list[int] = []

    def __bool__(self) -> bool:
        return bool(self.borders)

    def add(self, first: int, end: int) -> None:
        """Add the ids first <= id < end; some may already be in the set."""
        if first >= end:
            return
        borders = self.borders
        left, right = bisect_left(borders, first), bisect_right(borders, end)
        # An even index is between two ranges, where the new border is inserted; an odd one is within a range.
        borders[left:right] = ([] if left % 2 else [first]) + ([] if right % 2 else [end])

    def remove(self, first: int, end: int) -> None:
        """Remove the ids first <= id < end; some may already be missing."""
        if first >= end:
            return
        borders = self.borders
        left, right = bisect_left(borders, first), bisect_right(borders, end)
        borders[left:right] = ([first] if left % 2 else []) + ([end] if right % 2 else [])

    def overlaps(self, first: int, end: int) -> bool:
        """Return whether any id with first <= id < end is in the set."""
        borders = self.borders
        place = bisect_right(borders, first)
        return bool(place % 2) or (place < len(borders) and borders[place] < end)

    def within(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges of the ids first <= id < end that are in the set, as pairs of first id and end."""
        borders = self.borders
        place = bisect_right(borders, first)
        place -= place % 2
        found: list[tuple[int, int]] = []
        while place < len(borders) and borders[place] < end:
            found.append((max(first, borders[place]), min(end, borders[place + 1])))
            place += 2
        return found
