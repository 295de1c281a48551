"""Reading files for clients that may disconnect at any moment."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from broker.manage.file_reads import FileReads
from broker.store.files import File, Files
from tests.deadline import DEADLINE_S, wait_until_async


class SlowFile(File):
    """A file that records when it is closed."""

    closed = False

    def close(self) -> None:
        """Record the close."""
        self.closed = True
        super().close()


class SlowFiles(Files):
    """Real files on a disk that opens them slowly."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.gate = threading.Event()
        self.opened: list[SlowFile] = []

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Wait until the test continues."""
        self.asked.set()
        self.gate.wait(DEADLINE_S)
        self.opened.append(SlowFile(path, super().open(path, write=write, create=create)._descriptor))
        return self.opened[-1]


async def test_a_file_that_is_opened_for_who_has_left_is_closed(tmp_path: Path) -> None:
    """A file that is opened after its client disconnected is closed, so no descriptor leaks."""
    path = tmp_path / "file"
    path.write_bytes(b"x")
    files = SlowFiles()
    reads = FileReads(files)
    opening = asyncio.create_task(reads.open(path))
    await asyncio.to_thread(files.asked.wait, DEADLINE_S)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    files.gate.set()

    async def closed() -> bool:
        return [file.closed for file in files.opened] == [True]

    await wait_until_async(closed, "the file is closed")
    reads.close()
