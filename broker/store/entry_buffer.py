"""The entry buffer: the queue-log entries of chunks that have too few of them for a file.

To create a file takes as long as to write hundreds of entries, and on ext4 a hundred times longer once many files were
removed. Thousands of queues with a few messages each would need one file each.
"""

from __future__ import annotations

from typing import Final

CHUNK_MAX_BYTES: Final = 4096  # of entries of one chunk: 170 of them, which in memory took 70 kB or more

Piece = tuple[int, bytes]  # offset in the file of the chunk, and entries


class _Chunk:
    """The entries of one chunk, in the order in which they were written: a later piece replaces an earlier one."""

    __slots__ = ("pieces", "size_bytes")

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.size_bytes = 0

    def add(self, at: int, block: bytes) -> None:
        """Add entries."""
        self.pieces.append((at, block))
        self.size_bytes += len(block)

    def drop(self, at: int, stop: int) -> None:
        """Remove the pieces that lie within a range of offsets."""
        self.pieces = [piece for piece in self.pieces if piece[0] < at or piece[0] + len(piece[1]) > stop]
        self.size_bytes = sum([len(block) for _, block in self.pieces])

    def read(self, at: int, size: int) -> bytes:
        """Return a range of the chunk, with zeros for what was not written."""
        found = bytearray(size)
        for start, block in self.pieces:
            skipped = max(at - start, 0)
            part = block[skipped : at + size - start] if start < at + size else b""
            if part:
                begin = start + skipped - at
                found[begin : begin + len(part)] = part
        return bytes(found)


class EntryBuffer:
    """The chunks of one vhost's queue logs that have no file yet.

    Change it only with the lock of the queue logs held; any thread may read a chunk meanwhile.
    """

    def __init__(self) -> None:
        self._queues: dict[int, dict[int, _Chunk]] = {}  # by queue number and chunk

    def __contains__(self, key: tuple[int, int]) -> bool:
        return key[1] in self._queues.get(key[0], ())

    def add(self, queue_number: int, chunk: int, at: int, block: bytes) -> bool:
        """Add entries at an offset of a chunk; return False, with nothing added, when they are too many."""
        chunks = self._queues.get(queue_number)
        found = None if chunks is None else chunks.get(chunk)
        if len(block) + (0 if found is None else found.size_bytes) > CHUNK_MAX_BYTES:
            return False
        if found is None:
            found = self._queues.setdefault(queue_number, {})[chunk] = _Chunk()
        found.add(at, block)
        return True

    def pieces(self, queue_number: int, chunk: int) -> list[Piece]:
        """Return the entries of a chunk as they were written, none when it is not there."""
        found = self._queues.get(queue_number, {}).get(chunk)
        return [] if found is None else found.pieces

    def read(self, queue_number: int, chunk: int, at: int, size: int) -> bytes | None:
        """Return a range of a chunk, with zeros for what was not written, None when the chunk is not there."""
        found = self._queues.get(queue_number, {}).get(chunk)
        return None if found is None else found.read(at, size)

    def drop(self, queue_number: int, chunk: int, at: int, stop: int) -> None:
        """Forget the entries in a range of offsets. Cost: O(pieces of the chunk)."""
        found = self._queues.get(queue_number, {}).get(chunk)
        if found is not None:
            found.drop(at, stop)

    def discard(self, queue_number: int, chunk: int) -> None:
        """Forget a chunk, if it is in the buffer."""
        chunks = self._queues.get(queue_number)
        if chunks is not None and chunks.pop(chunk, None) is not None and not chunks:
            del self._queues[queue_number]

    def chunks(self, queue_number: int) -> tuple[int, ...]:
        """Return the chunks of a queue."""
        return tuple(self._queues.get(queue_number, ()))
