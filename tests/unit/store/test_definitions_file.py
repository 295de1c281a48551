"""The definitions file: the last state is read back, and damage is reported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from broker.store.damage import CorruptFile, NewerFormat, StoreFailed
from broker.store.definitions_file import DefinitionsFile
from broker.store.files import File, Files
from broker.store.memory_files import MemoryFile, MemoryFiles

FOLDER = Path("/srv/data")
DEFINITIONS: dict[str, Any] = {"users": [{"name": "ü", "tags": []}], "vhosts": [{"name": "/"}], "n": 1 << 60}


def new_file(files: MemoryFiles) -> DefinitionsFile:
    """Return the definitions file as a new process opens it."""
    files.make_folder(FOLDER)
    return DefinitionsFile(files, FOLDER)


def test_definitions_come_back(files: MemoryFiles) -> None:
    """A new file is empty; later the last written definitions are read."""
    assert new_file(files).read() is None
    versions: list[dict[str, Any]] = [DEFINITIONS, {"users": []}, {}]
    for definitions in versions:
        new_file(files).write(definitions)
        assert new_file(files).read() == definitions
    assert files.list(FOLDER) == ["definitions"]


def test_every_flip_and_every_cut_is_told(files: MemoryFiles) -> None:
    """Damage is never read as definitions or as their absence, and the error names the file."""
    new_file(files).write(DEFINITIONS)
    block = files.contents[FOLDER / "definitions"].block
    whole = bytes(block)
    for damaged in [whole[:cut] for cut in range(len(whole))] + [
        whole[:at] + bytes((whole[at] ^ 1 << bit,)) + whole[at + 1 :] for at in range(len(whole)) for bit in range(8)
    ]:
        block[:] = damaged
        later = re.match(rb"slotmq definitions, format [2-9]", damaged)  # a flipped format digit looks newer
        with pytest.raises(NewerFormat if later else CorruptFile, match=r"^/srv/data/definitions: "):
            new_file(files).read()
        assert bytes(block) == damaged


def test_a_later_format_is_named(files: MemoryFiles) -> None:
    """A file of a later version is refused with both format numbers."""
    new_file(files).write(DEFINITIONS)
    block = files.contents[FOLDER / "definitions"].block
    block[:] = block.replace(b"format 1,", b"format 12,")
    with pytest.raises(NewerFormat, match=r"^/srv/data/definitions: written by a newer SlotMQ, format 12; .* up to 1$"):
        new_file(files).read()


@pytest.mark.parametrize("value", [object(), float("nan"), "\ud800"])
def test_what_is_no_json_touches_nothing(files: MemoryFiles, value: object) -> None:
    """Definitions that cannot be encoded leave the file as it is."""
    new_file(files).write(DEFINITIONS)
    with pytest.raises((TypeError, ValueError)):
        new_file(files).write({"bad": value})
    assert new_file(files).read() == DEFINITIONS
    assert files.list(FOLDER) == ["definitions"]


def test_the_file_is_private(tmp_path: Path) -> None:
    """Only the broker's account can read the file, because it contains password hashes."""
    file = DefinitionsFile(Files(), tmp_path)
    file.write(DEFINITIONS)
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.read() == DEFINITIONS


class UnclosableFile(MemoryFile):
    """A file whose close fails."""

    def close(self) -> None:
        """Fail."""
        raise StoreFailed(self.path, "Input/output error")


class UnclosableFiles(MemoryFiles):
    """Files whose close fails, in a folder that cannot be synced from a given moment on."""

    forgets = False

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open a file."""
        super().open(path, write=write, create=create)
        return UnclosableFile(path, self.contents[path])

    def sync_folder(self, folder: Path) -> None:
        """Sync a folder."""
        if self.forgets:
            raise StoreFailed(folder, "Input/output error")
        super().sync_folder(folder)


def test_a_close_that_fails_changes_no_outcome() -> None:
    """The new definitions are in force; and an error of the folder stays the error that is raised."""
    files = UnclosableFiles()
    file = new_file(files)
    file.write(DEFINITIONS)
    files.forgets = True
    with pytest.raises(StoreFailed) as failed:
        file.write(DEFINITIONS)
    assert failed.value.path == FOLDER
