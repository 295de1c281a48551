"""Open files: a bounded number of files kept open for reading, shared by threads."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from threading import Lock
from types import TracebackType

from broker.store.files import File, Files


class _Loan:
    """One open file and the number of threads that are reading it."""

    __slots__ = ("_forgotten", "_lender", "_readers", "file")

    def __init__(self, lender: OpenFiles, file: File) -> None:
        self._lender = lender
        self.file = file
        self._readers = 0
        self._forgotten = False

    def begin(self) -> None:
        self._readers += 1

    def end(self) -> None:
        """Remove a reader; after the last one, close a forgotten file."""
        self._readers -= 1
        if self._forgotten and not self._readers:
            self.file.close()

    def forget(self) -> None:
        """Close the file as soon as it has no readers."""
        self._forgotten = True
        if not self._readers:
            self.file.close()

    def __enter__(self) -> File:
        return self.file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lender.release(self)


class OpenFiles:
    """A cache of open files. Invariant: no file is closed while a thread reads it."""

    def __init__(self, files: Files, limit: int = 64) -> None:
        self._files = files
        self._limit = limit
        self._lock = Lock()
        self._loans: OrderedDict[Path, _Loan] = OrderedDict()

    def borrow(self, path: Path) -> _Loan:
        """Return a context manager of the file; open the file if it is not open.

        Raises: StoreFailed when it cannot be opened.
        """
        with self._lock:
            loan = self._loans.get(path)
            if loan is None:
                loan = self._loans[path] = _Loan(self, self._files.open(path))
                self._shrink()
            else:
                self._loans.move_to_end(path)
            loan.begin()
        return loan

    def release(self, loan: _Loan) -> None:
        """End one reader's use of a file."""
        with self._lock:
            loan.end()

    def forget(self, path: Path) -> None:
        """Drop a file that is being removed, and close it once it has no readers."""
        with self._lock:
            loan = self._loans.pop(path, None)
            if loan is not None:
                loan.forget()

    def close(self) -> None:
        with self._lock:
            while self._loans:
                self._loans.popitem()[1].forget()

    def _shrink(self) -> None:
        while len(self._loans) > self._limit:
            self._loans.popitem(last=False)[1].forget()
