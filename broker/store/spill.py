"""The spill: transient messages that do not fit in memory. Records are written at once and never synced, and each start
deletes them. Positions in the spill have the highest bit set, unlike positions in the log. `record` shows the format.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from broker.store.files import File, Files
from broker.store.message_log import SEGMENT_MAX_BYTES, Segments
from broker.store.segment import OFFSET_BITS, OFFSET_MASK, SPILLED

SPILLED_SEGMENT: Final = SPILLED >> OFFSET_BITS


def is_spilled(segment: int) -> bool:
    """Return whether a segment number (a position without its offset) belongs to the spill."""
    return segment >= SPILLED_SEGMENT


class Spill(Segments):
    """The spill of one vhost. A segment is removed once a newer one is written and no slot refers to it.

    Shapes: segment numbers, in positions and in the live counts, include the highest bit.
    """

    def __init__(self, files: Files, folder: Path, *, segment_bytes: int) -> None:
        super().__init__(files, folder, lowest=SPILLED_SEGMENT)
        self._limit = min(segment_bytes, SEGMENT_MAX_BYTES)
        self._file: File | None = None
        self._offset = 0
        self.active = SPILLED_SEGMENT

    def wipe(self) -> None:
        """Remove all files: a process never reads the spill of an earlier one."""
        for name in self._files.list(self._folder):
            self._files.remove(self._folder / name)

    def extend(self, records: Sequence[bytes]) -> list[int]:
        """Write records to one segment with one call, and return their positions. Raises: ValueError; StoreFailed."""
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

    def drop_live(self, segment: int, n: int) -> None:
        """Remove n references; remove a segment without any, unless it is the active one or the spill is closed."""
        super().drop_live(segment, n)
        if segment not in self.live and segment != self.active and self._file is not None:
            self._remove(segment)

    def close(self) -> None:
        self.readers.close()
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
        self._file = self._files.open(self.path(self.active), create=True)
        self.segments[self.active] = 0
        if before in self.segments and before not in self.live:
            self._remove(before)
