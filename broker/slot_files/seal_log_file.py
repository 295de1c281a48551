"""The file of the seal log: each line is on disk before what it says is counted on.

A line is written and synced by itself. So an accident leaves at most one line torn, the last, and a damaged line with a
good one behind it is damage, which stops the start. At each start, and when dead lines have become many, the file is
written anew and renamed: what a failed sync left in the page cache alone is on disk then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from broker.event_log import get_logger
from broker.slot_files.seal_log import (
    FORMAT,
    BadSealLine,
    Cursor,
    Gap,
    NewerSealLog,
    Released,
    Seal,
    decode_lines,
    encode_line,
)
from broker.slot_files.seal_view import SealView
from broker.store.damage import CorruptFile, NewerFormat
from broker.store.files import File, Files

__all__ = ["NAME", "SealLog"]

NAME: Final = "seals.log"
DEAD_MIN: Final = 1000  # dead lines below this number are left where they are
DEAD_RATIO: Final = 2
BLOCK_LINES: Final = 1000

_log = get_logger()


class SealLog:
    """The seal log of a data folder, for the one process that writes it. All methods are *blocking*; one thread.

    Invariant: ``view`` never shows what is not on disk. After StoreFailed nothing more may be appended.
    """

    def __init__(self, files: Files, folder: Path, view: SealView, *, sync: bool) -> None:
        self.path = folder / NAME
        self.view = view
        self._files = files
        self._folder = folder
        self._sync = sync
        self._file: File | None = None
        self._size = 0

    @classmethod
    def open(cls, files: Files, folder: Path, *, sync: bool) -> SealLog:
        """Return the log of a folder, a new one when there is none; a torn last line is cut.

        Raises: CorruptFile when it is damaged, or missing where there are slot files; NewerFormat; StoreFailed.
        """
        path = folder / NAME
        if files.exists(path):
            view = _read(files, path)
        else:
            if any(name.endswith(".slot") for name in files.list(folder)):
                raise CorruptFile(path, "there are slot files but no log of them; put a copy of it back, or move them")
            view = SealView([{"k": "store", "format": FORMAT, "store": files.token(16).hex()}])
        log = cls(files, folder, view, sync=sync)
        log._rewrite()
        return log

    @property
    def next_seal(self) -> int:
        """The sequence number that the next slot file gets."""
        return self.view.last_seal + 1

    def append_seal(self, seal: Seal) -> None:
        """Say that a slot file is there, which it is with all it has. Raises: StoreFailed."""
        self._append("seal", seal.to_json())

    def append_gap(self, gap: Gap) -> None:
        """Say that a slot file goes though not every cursor has passed. Raises: StoreFailed."""
        self._append("gap", gap.to_json())

    def release(self, released: Released) -> None:
        """Say that slot files go, up to one. Raises: StoreFailed."""
        self._append("released", released.to_json())

    def set_cursor(self, cursor: Cursor) -> None:
        """Say where a cursor stands; one that is new is made. Raises: StoreFailed."""
        self._append("cursor", cursor.to_json())

    def remove_cursor(self, name: str, vhost: str, tap: str) -> None:
        """Say that there is no such cursor any more. Raises: StoreFailed."""
        self._append("cursor_removed", {"name": name, "vhost": vhost, "tap": tap})

    def close(self) -> None:
        """Close the file. Once more changes nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, kind: str, fields: dict[str, Any]) -> None:
        assert self._file is not None, "the seal log is closed"
        line = encode_line(kind, fields)
        self._file.write_at(self._size, line)
        if self._sync:
            self._file.sync()
        self._size += len(line)
        self.view.fold({"k": kind, **fields})
        live = self.view.live_lines()
        if self.view.lines - live > max(DEAD_MIN, DEAD_RATIO * live):
            self._rewrite()

    def _rewrite(self) -> None:
        """Put a file with the live lines in the place of the old one."""
        unfinished = self._folder / f"{NAME}.unfinished"
        self._files.remove(unfinished)  # after a failed sync no later one would write the pages of the same file
        file = self._files.open(unfinished, create=True)
        try:
            size = 0
            block: list[bytes] = []
            for line in self.view.to_lines():
                block.append(line)
                if len(block) == BLOCK_LINES:
                    size += _write(file, size, block)
            size += _write(file, size, block)
            if self._sync:
                file.sync()
            self._files.rename(unfinished, self.path)
            if self._sync:
                self._files.sync_folder(self._folder)
        except BaseException:
            file.close()
            raise
        self.close()
        self._file, self._size = file, size
        self.view.rewritten()


def _write(file: File, at: int, lines: list[bytes]) -> int:
    """Write the lines and empty the list; returns how many bytes they were."""
    block = b"".join(lines)
    lines.clear()
    file.write_at(at, block)
    return len(block)


def _read(files: Files, path: Path) -> SealView:
    block = files.read(path)
    try:
        lines, good_bytes = decode_lines(block)
        view = SealView(lines)
    except NewerSealLog as newer:
        raise NewerFormat(path, newer.number, FORMAT) from newer
    except BadSealLine as error:
        raise CorruptFile(path, f"{error}; nothing was changed: put a copy of it back") from error
    if not view.store:
        raise CorruptFile(path, "it does not say whose it is; nothing was changed: put a copy of it back")
    if good_bytes < len(block):
        _log.warning("seal_log.tail_cut", path=str(path), bytes=len(block) - good_bytes)
    return view
