"""The writer of one slot file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from crc32c import crc32c

from broker.slot_files.slot_file import (
    END_MAGIC,
    FORMAT,
    HEADER,
    HEADER_BYTES,
    INDEX_ROW,
    MAGIC,
    TAIL,
    TAIL_BYTES,
    SlotMeta,
)
from broker.store.files import Files

FILE_MAX_BYTES: Final = (1 << 31) - 1  # offsets have 31 bits, because readers use signed numbers
BLOCK_BYTES: Final = 1 << 20

_INDEX_PACK: Final = INDEX_ROW.pack


class SlotFileWriter:
    """Write one slot file, in ascending order of message ids. All methods are *blocking* and raise StoreFailed.

    Cost: the index of all rows in memory, and at most one block of rows.
    """

    def __init__(self, files: Files, path: Path, meta: SlotMeta) -> None:
        """Create a file without rows; replace a file at its path, such as an abandoned one that could not be removed.

        Shapes: `meta` contains the fields up to `first`, and the incarnation.
        """
        files.remove(path)
        self.path = path
        self.meta = meta
        self._files = files
        self._file = files.open(path, create=True)
        self._done: tuple[SlotMeta, int, int] | None = None
        header = HEADER.pack(
            MAGIC, FORMAT, HEADER_BYTES, 0, bytes.fromhex(meta.store), meta.seal, meta.number, meta.first
        )
        self._pending = [header]
        self._index = bytearray()
        self._at = HEADER_BYTES  # where the next row begins
        self._block_at = 0  # where the pending rows begin
        self._block_end = BLOCK_BYTES
        self._crc = 0
        self._earliest = (1 << 63) - 1
        self._latest = -(1 << 63)

    @property
    def rows(self) -> int:
        """The number of rows added."""
        return len(self._index) // INDEX_ROW.size

    @property
    def size_bytes(self) -> int:
        """The length of the file so far, including its index but not meta and tail."""
        return self._at + len(self._index)

    def add(self, message_id: int, timestamp_ms: int, flags: int, route: bytes, header: bytes, body: bytes) -> None:
        """Add one row. Shapes: `route` is exchange and key as short strings, as `encode_route` returns them.

        Raises: OverflowError when the rows would reach 2 GiB, before anything is added; StoreFailed.
        """
        row = route + header + body
        at = self._at
        end = at + len(row)
        if end >= FILE_MAX_BYTES:
            raise OverflowError("a slot file is shorter than 2 GiB")
        exchange_len = route[0]
        self._index += _INDEX_PACK(
            message_id,
            timestamp_ms,
            at,
            len(header),
            len(body),
            crc32c(row),
            exchange_len,
            route[exchange_len + 1],
            flags,
            0,
        )
        self._pending.append(row)
        self._at = end
        if timestamp_ms < self._earliest:
            self._earliest = timestamp_ms
        if timestamp_ms > self._latest:
            self._latest = timestamp_ms
        if end >= self._block_end:
            self._flush()

    def complete(self, end: int) -> None:
        """Write index, meta and tail after the rows. A second call does nothing.

        After StoreFailed, as on a full disk, the file may be abandoned and its messages may be written again.
        """
        if self._done is not None:
            return
        self._flush()
        rows = self.rows
        meta = replace(self.meta, end=end, count=rows)
        if rows:
            meta = replace(meta, first_ts_ms=self._earliest, last_ts_ms=self._latest)
        index, text = bytes(self._index), meta.to_json()
        meta_at = self._at + len(index)
        tail = TAIL.pack(self._at, meta_at, rows, len(text), self._crc, crc32c(index), crc32c(text), END_MAGIC)
        self._file.write_at(self._at, index + text + tail)
        self._done = meta, meta_at + len(text) + TAIL_BYTES, crc32c(tail)

    def finish(self, end: int, *, sync: bool = False) -> tuple[SlotMeta, int, int]:
        """Complete the file and return its meta, length in bytes and checksum; its folder is not synced.

        After StoreFailed, which a sync may raise, nothing more may be written.
        """
        self.complete(end)
        assert self._done is not None
        if sync:
            self._file.sync()
        self._file.close()
        return self._done

    def abandon(self) -> None:
        """Close and remove the file."""
        self._file.close()
        self._files.remove(self.path)

    def _flush(self) -> None:
        block = b"".join(self._pending)
        self._pending.clear()
        self._file.write_at(self._block_at, block)
        self._crc = crc32c(block, self._crc)
        self._block_at = self._at
        self._block_end = self._at + BLOCK_BYTES
