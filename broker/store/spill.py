"""The spill: transient messages that do not fit in memory. It is written at once, never synced, and wiped at the start.

Positions in the spill have the highest bit set, which tells them from positions in the log. `record` has the format.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from broker.store.damage import CorruptRecord
from broker.store.files import File, Files
from broker.store.message_log import SEGMENT_MAX_BYTES
from broker.store.open_files import OpenFiles
from broker.store.record import is_whole
from broker.store.segment import OFFSET_BITS, OFFSET_MASK, SPILLED, segment_path

SPILLED_SEGMENT: Final = SPILLED >> OFFSET_BITS


def is_spilled(segment: int) -> bool:
    """Return whether a segment number (a position without its offset) belongs to the spill."""
    return segment >= SPILLED_SEGMENT


class Spill:
    """The spill of one vhost. A segment is removed as soon as it is full and no slot refers to it.

    Shapes: segment numbers, in positions and in the live counts, include the highest bit.
    """

    def __init__(self, files: Files, folder: Path, *, segment_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._limit = min(segment_bytes, SEGMENT_MAX_BYTES)
        self._readers = OpenFiles(files)
        self._file: File | None = None
        self._offset = 0
        self.active = SPILLED_SEGMENT
        self.segments: dict[int, int] = {}
        self.live: dict[int, int] = {}

    def wipe(self) -> None:
        """Remove the files of an earlier process."""
        for name in self._files.list(self._folder):
            self._files.remove(self._folder / name)

    def append(self, record: bytes) -> int:
        """Write one record and return its position."""
        return self.extend([record])[0]

    def extend(self, records: Sequence[bytes]) -> list[int]:
        """Write records with one call and return their positions; they lie in one segment."""
        if self._file is None or self._offset >= self._limit:
            self._roll()
        assert self._file is not None
        offset = self._offset
        base = self.active << OFFSET_BITS
        positions = []
        for record in records:
            positions.append(base | offset)
            offset += len(record)
        if offset > OFFSET_MASK:
            raise ValueError(f"{offset - self._offset} bytes do not fit one segment")
        self._file.write_at(self._offset, b"".join(records))
        self._offset = self.segments[self.active] = offset
        return positions

    def add_live(self, segment: int, n: int) -> None:
        """Count n more references to a segment, which keep it on disk."""
        self.live[segment] = self.live.get(segment, 0) + n

    def drop_live(self, segment: int, n: int) -> None:
        """Count n fewer references; remove the file with the last one, unless it is still written to."""
        left = self.live.get(segment, 0) - n
        if left < 0:
            raise ValueError(f"spill segment {segment} has {left + n} references, not {n}")
        if left:
            self.live[segment] = left
            return
        del self.live[segment]
        if segment != self.active:
            self._remove(segment)

    def read(self, position: int, size: int) -> bytes:
        """Return the record at a position. Raises: CorruptRecord, StoreFailed."""
        record = self.read_span(position, size)
        if not is_whole(record):
            raise self.corrupt(position, "the record that was asked for is not there")
        return record

    def read_span(self, position: int, size: int) -> bytes:
        """Return `size` bytes of one segment, unchecked, fewer at its end."""
        with self._readers.borrow(self._path(position >> OFFSET_BITS)) as file:
            return file.read_at(position & OFFSET_MASK, size)

    def read_cached(self, position: int, size: int) -> bytes | None:
        """Return what `read_span` would return if the disk is not needed for it, None otherwise."""
        with self._readers.borrow(self._path(position >> OFFSET_BITS)) as file:
            return file.read_cached(position & OFFSET_MASK, size)

    def has(self, segment: int) -> bool:
        """Return whether the file of a segment exists."""
        return self._files.exists(self._path(segment))

    def corrupt(self, position: int, reason: str) -> CorruptRecord:
        """Return the error that names a place in the spill."""
        segment = position >> OFFSET_BITS
        return CorruptRecord(self._path(segment), segment - SPILLED_SEGMENT, position & OFFSET_MASK, reason)

    def close(self) -> None:
        """Close the files."""
        self._readers.close()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _roll(self) -> None:
        before = self.active
        if self._file is not None:
            self._file.close()
            self._file = None
        self.active += 1
        self._offset = 0
        self._file = self._files.open(self._path(self.active), create=True)
        self.segments[self.active] = 0
        if before in self.segments and before not in self.live:
            self._remove(before)

    def _remove(self, segment: int) -> None:
        path = self._path(segment)
        self._readers.forget(path)
        self._files.remove(path)
        del self.segments[segment]

    def _path(self, segment: int) -> Path:
        return segment_path(self._folder, segment - SPILLED_SEGMENT)
