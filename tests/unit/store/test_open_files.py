"""The cache of open files: bounded, and no file is closed during a read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import pytest

from broker.store.open_files import OpenFiles
from tests.deadline import DEADLINE_S
from tests.watched_files import WatchedFiles


class CountedFiles(WatchedFiles):
    """Files of these names; `opened` has those that are open."""

    def __init__(self, *names: str) -> None:
        super().__init__(Path("/"))
        for name in names:
            self.open(Path("/") / name, create=True)
        self.opened: list[str] = []
        self.before = self._count

    def _count(self, call: str, path: Path) -> None:
        (self.opened.remove if call == "close" else self.opened.append)(path.name)


def test_the_least_used_is_closed_first() -> None:
    """The files that were used last stay open, up to the limit."""
    files = CountedFiles("a", "b", "c")
    lender = OpenFiles(files, limit=2)
    for name in ("a", "b", "a", "c"):
        with lender.borrow(Path("/") / name):
            pass
    assert files.opened == ["a", "c"]
    lender.close()
    assert files.opened == []


def test_a_reader_keeps_its_file() -> None:
    """A file that is evicted during a read is closed after the last reader."""
    files = CountedFiles("a")
    lender = OpenFiles(files)
    with lender.borrow(Path("/a")), lender.borrow(Path("/a")):
        lender.forget(Path("/a"))
        assert files.opened == ["a"]
    assert files.opened == []


class Eager:
    """A lock for which another thread waits: whenever it is released, that thread does its work at once."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._lock = Lock()
        self._work = work
        self._waits = True

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()
        if self._waits:
            self._waits = False
            other = Thread(target=self._work)
            other.start()
            other.join(DEADLINE_S)
            assert not other.is_alive()
            self._waits = True


@pytest.mark.parametrize("limit", [1, 64])
def test_a_file_that_another_thread_drops_at_once_is_open_for_its_reader(limit: int) -> None:
    """Between the call that borrows a file and its first read, another thread removes it, or reads a file too many."""
    files = CountedFiles("a", "b")
    lender = OpenFiles(files, limit=limit)

    def drop() -> None:
        if limit == 1:
            with lender.borrow(Path("/b")):
                pass
        else:
            lender.forget(Path("/a"))

    lock: Any = Eager(drop)
    lender._lock = lock
    for _ in range(2):
        with lender.borrow(Path("/a")):
            assert "a" in files.opened
        assert "a" not in files.opened
