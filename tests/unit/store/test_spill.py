"""The spill: transient messages on disk, deleted when no longer referenced."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.memory_files import MemoryFiles
from broker.store.record import encode_settled, is_whole
from broker.store.segment import SPILLED
from broker.store.spill import Spill, is_spilled

FOLDER = Path("/spill")
RECORD = encode_settled(0, 0, 1, [1])


def new_spill(files: MemoryFiles) -> Spill:
    """Return a spill with segments of 200 bytes."""
    files.make_folder(FOLDER)
    return Spill(files, FOLDER, segment_bytes=200)


def test_records_are_there_at_once() -> None:
    """Positions have the highest bit set, and records are readable before any sync."""
    spill = new_spill(MemoryFiles())
    positions = spill.extend([RECORD, RECORD])
    positions.append(spill.extend([RECORD])[0])
    assert all(position & SPILLED and is_spilled(position >> 32) for position in positions)
    assert all(spill.read_span(position, len(RECORD)) == RECORD for position in positions)
    assert not is_whole(spill.read_span(positions[0] + 1, len(RECORD)))
    assert "0000000001.log: segment 1, offset 0: why" in str(spill.corrupt(positions[0], "why"))


def test_a_segment_goes_with_its_last_reference() -> None:
    """A full segment is deleted with its last reference; the active one is kept until it is full."""
    files = MemoryFiles()
    spill = new_spill(files)
    segments = []
    for _ in range(3):
        segments.append(spill.extend([RECORD] * 4)[0] >> 32)
        spill.add_live(segments[-1], 1)
    assert len(files.list(FOLDER)) == 3
    spill.drop_live(segments[0], 1)
    spill.drop_live(segments[2], 1)
    assert sorted(spill.segments) == segments[1:]
    spill.extend([RECORD])
    assert sorted(spill.segments) == [segments[1], spill.active]
    with pytest.raises(ValueError, match="references"):
        spill.drop_live(segments[2], 1)


def test_a_start_wipes_it() -> None:
    """A start deletes the spill of the last process."""
    files = MemoryFiles()
    new_spill(files).extend([RECORD])
    new_spill(files).wipe()
    assert files.list(FOLDER) == []
