"""The cache of open files: bounded, and no file is closed during a read."""

from __future__ import annotations

from pathlib import Path

from broker.store.files import File
from broker.store.memory_files import MemoryFile, MemoryFiles
from broker.store.open_files import OpenFiles


class CountedFiles(MemoryFiles):
    """Files that record which of them are open."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        file = super().open(path, write=write, create=create)
        assert isinstance(file, MemoryFile)
        self.opened.append(path.name)
        file.close = lambda: self.opened.remove(path.name)  # type: ignore[method-assign]
        return file


def new_files(*names: str) -> CountedFiles:
    """Return files of these names, none of them open."""
    files = CountedFiles()
    files.make_folder(Path("/"))
    for name in names:
        files.open(Path("/") / name, create=True).close()
    return files


def test_the_least_used_is_closed_first() -> None:
    """The files that were used last stay open, up to the limit."""
    files = new_files("a", "b", "c")
    lender = OpenFiles(files, limit=2)
    for name in ("a", "b", "a", "c"):
        with lender.borrow(Path("/") / name):
            pass
    assert files.opened == ["a", "c"]
    lender.close()
    assert files.opened == []


def test_a_reader_keeps_its_file() -> None:
    """A file that is evicted during a read is closed after the last reader."""
    files = new_files("a")
    lender = OpenFiles(files)
    with lender.borrow(Path("/a")), lender.borrow(Path("/a")):
        lender.forget(Path("/a"))
        assert files.opened == ["a"]
    assert files.opened == []
