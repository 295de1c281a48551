"""The file with the difference between the broker's clock and the system clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.clock_file import ClockFile, ClockState
from broker.store.damage import CorruptFile, NewerFormat
from broker.store.memory_files import MemoryFiles

FOLDER = Path("/data")
STATE = ClockState(-1_767_225_600_000, 1_700_000_000_123)


def new_file() -> tuple[MemoryFiles, ClockFile]:
    """Return the clock file of an empty folder."""
    files = MemoryFiles()
    files.make_folder(FOLDER)
    return files, ClockFile(files, FOLDER)


def test_the_state_comes_back() -> None:
    """The last state is read; a new folder has a difference of zero."""
    _, file = new_file()
    assert file.read() == ClockState(0, 0)
    for state in (STATE, ClockState(1, 2)):
        file.write(state)
        assert file.read() == state


def test_every_flip_and_every_cut_is_told() -> None:
    """Damage is reported, because a wrong time is worse than none."""
    files, file = new_file()
    file.write(STATE)
    block = files.read(file.path)
    damaged = [block[:end] for end in range(len(block))]
    damaged += [
        block[:at] + bytes([block[at] ^ 1 << bit]) + block[at + 1 :] for at in range(len(block)) for bit in (0, 4)
    ]
    for found in damaged:
        content = files.open(file.path, write=True)
        content.truncate(0)
        content.write_at(0, found)
        with pytest.raises((CorruptFile, NewerFormat)):
            file.read()


def test_a_later_format_is_named() -> None:
    """A file of a later format is reported and left alone."""
    files, file = new_file()
    files.open(file.path, create=True).write_at(0, b"slotmq clock, format 2, whatever\n")
    with pytest.raises(NewerFormat, match="format 2; this version reads up to 1"):
        file.read()
