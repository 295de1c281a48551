"""The file of the seal log. Each line is written and, unless syncs are off, synced before anything relies on it.

So a crash tears at most the last line; a bad line before a good one is damage, and the broker does not start. The file
is rewritten at each start, and when many lines are obsolete. The rewrite also brings lines to the disk that a failed
sync left only in the page cache.
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
from broker.store.damage import CorruptFile, NewerFormat, note_missing
from broker.store.files import File, Files

NAME: Final = "seals.log"
DEAD_MIN: Final = 1000  # obsolete lines; the file is rewritten when both limits are exceeded
DEAD_RATIO: Final = 2  # obsolete lines for each live line

_log = get_logger()


class SealLog:
    """The seal log of a data folder, in the process that writes it. All methods are *blocking*; one thread calls them.

    Invariant: ``view`` shows only what is on disk, unless syncs are off. After StoreFailed nothing may be appended.
    """

    def __init__(self, files: Files, folder: Path, view: SealView, *, sync: bool) -> None:
        self.path = folder / NAME
        self.view = view
        self._files = files
        self._sync = sync
        self._file: File | None = None
        self._size = 0

    @classmethod
    def open(
        cls, files: Files, folder: Path, *, sync: bool, expected: bool = False, quarantine: bool = False
    ) -> SealLog:
        """Return the log of a folder, without a torn last line; create it if it is missing.

        Shapes: an `expected` log should exist; if it does not, it is created only with `quarantine`.
        Raises: CorruptFile when damaged, or missing where there are slot files; MissingData; NewerFormat; StoreFailed.
        """
        path = folder / NAME
        if files.exists(path):
            view = _read(files, path)
        else:
            if any(name.endswith(".slot") for name in files.list(folder)):
                raise CorruptFile(path, "there are slot files but no log of them; put a copy of it back, or move them")
            if expected:
                note_missing(path, "with all slot files and cursors of taps", quarantine=quarantine)
            view = SealView([{"k": "store", "format": FORMAT, "store": files.token(16).hex()}])
        log = cls(files, folder, view, sync=sync)
        log._rewrite()
        return log

    @property
    def next_seal(self) -> int:
        """The sequence number that the next slot file gets."""
        return self.view.last_seal + 1

    def append(self, fact: Seal | Gap | Released | Cursor) -> None:
        """Append one line. The slot file of a seal must already be on disk. Raises: StoreFailed."""
        self._append(fact.kind, fact.to_json())

    def remove_cursor(self, name: str, vhost: str, tap: str) -> None:
        """Append the removal of a cursor. Raises: StoreFailed."""
        self._append("cursor_removed", {"name": name, "vhost": vhost, "tap": tap})

    def close(self) -> None:
        """Close the file. A second call does nothing."""
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
        """Replace the file with one that contains only the live lines; sync it even if syncs are off."""
        file = self._files.replace(self.path, self.view.to_lines())
        self.close()
        self._file, self._size = file, file.size()
        self.view.rewritten()


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
        raise CorruptFile(path, "it does not name its store; nothing was changed: put a copy of it back")
    if good_bytes < len(block):
        _log.warning("seal_log.tail_cut", path=str(path), bytes=len(block) - good_bytes)
    return view
