"""The catalog of a broker's slots, read from the data folder or over the broker's HTTP server.

A local or mounted data folder can be read without a running broker.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from broker.cli.control_client import Unanswered, ask
from broker.cli.parser import BadUsage
from broker.pipeline.faults import SlotDamaged, SlotMissing, SourceRefused, restated
from broker.pipeline.options import NO_TABLE, local_path
from broker.pipeline.source.http_catalog import HttpCatalog
from broker.pipeline.source.slot_handle import SlotHandle
from broker.slot_files.seal_log import BadSealLine, decode_lines
from broker.slot_files.seal_view import SealView
from broker.slot_files.slot_file import BadSlotFile
from broker.slot_files.slot_view import SlotView, open_slot

REMEMBERED_BYTES: Final = 256
NOTE_TIMEOUT_S: Final = 2.0
BLOCK_BYTES: Final = 1 << 20  # how much of a seal log to read at once
SMALL_BYTES: Final = 1 << 16  # reading a file up to this size costs less than mapping it


class SealReader:
    """Read the new lines of a seal log at each call of `view`.

    Invariant: each call continues after the last complete line, or starts over if the log has been replaced.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start_over(0)

    def _start_over(self, inode: int) -> None:
        self._inode = inode
        self._at = 0
        self._last_bytes = b""  # the bytes before `_at`, to recognize the file
        self._view = SealView()

    def view(self) -> SealView:
        """Return the current state of the log; the same object while the log only grows. Raises: SourceRefused."""
        try:
            with self._path.open("rb") as log:
                while self._fold(self._read_new(log)):
                    pass
        except FileNotFoundError:
            folder = self._path.parent.parent
            hint = "is it a data folder, and did a broker with slots run on it?"
            raise SourceRefused(f"no slots in {folder}: there is no {self._path.name} ({hint})") from None
        except OSError as error:
            raise SourceRefused(f"{self._path} cannot be read: {error.strerror or error}") from None
        except BadSealLine as error:
            raise SourceRefused(f"{self._path} cannot be read: {error}") from None
        return self._view

    def _fold(self, block: bytes) -> bool:
        """Fold the complete lines of a block into the view, and return whether there were any."""
        lines, size = decode_lines(block)
        for line in lines:
            self._view.fold(line)
        self._at += size
        self._last_bytes = (self._last_bytes + block[:size])[-REMEMBERED_BYTES:]
        return size > 0

    def _read_new(self, log: BinaryIO) -> bytes:
        """Return the next block of the log, or the first one if the log has been replaced."""
        inode = os.fstat(log.fileno()).st_ino
        log.seek(self._at - len(self._last_bytes))
        block = log.read(len(self._last_bytes) + BLOCK_BYTES)
        if inode == self._inode and block.startswith(self._last_bytes):
            return block[len(self._last_bytes) :]
        # The log has been rewritten. The new file may have the inode of the old one.
        self._start_over(inode)
        log.seek(0)
        return log.read(BLOCK_BYTES)


class StoreCatalog:
    """The slots in a data folder. Some methods need a running broker, and send requests to its control socket."""

    partial = False  # a user who may open the folder may read all slots

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Set the data folder. Raises: SourceRefused for a URL."""
        self._folder = local_path(os.fspath(path), SourceRefused).absolute()
        self.address = str(self._folder)
        self._slots = self._folder / "slots"
        self._reader = SealReader(self._slots / "seals.log")

    def view(self) -> SealView:
        """Return the current state of the seal log. The next call may change the returned view."""
        return self._reader.view()

    def fetch_slot(self, slot: SlotHandle) -> Any:
        """Return a slot file, sealed or of a snapshot; a large one is mapped. Raises: SlotMissing, SourceRefused."""
        return self._map(self._path(slot), str(slot))

    def location(self, slot: SlotHandle) -> str:
        return str(self._path(slot))

    def snapshot(self, vhost: str, queue: str) -> list[SlotHandle]:
        """Make a snapshot of a queue's messages, which the broker keeps for `taps.snapshot_ms`; return its files."""
        return SlotHandle.of_snapshot(self._ask("snapshot", vhost=vhost, queue=queue), vhost, queue)

    def seal_now(self, vhost: str | None = None, tap: str | None = None) -> int:
        """Seal the open slots of all taps, of a vhost or of one tap, and return the last seal."""
        answer = self._ask("seal", vhost=vhost, tap=tap)
        return int(answer["last_seal"])

    def set_cursor(self, name: str, vhost: str, tap: str, seal: int, incarnation: str) -> None:
        """Record that a reader has passed a seal; create the cursor if needed, and never move it back."""
        self._ask("cursor_set", name=name, vhost=vhost, tap=tap, seal=seal, incarnation=incarnation)

    def remove_cursor(self, name: str, vhost: str, tap: str) -> None:
        self._ask("cursor_remove", name=name, vhost=vhost, tap=tap)

    def note_read(self, taps: Iterable[tuple[str, str]]) -> None:
        """Notify the running broker that taps are being read, so that it writes their slot files sooner.

        A broker that does not answer soon is ignored.
        """
        names: dict[str, list[str]] = {}
        for vhost, tap in sorted(taps):
            names.setdefault(vhost, []).append(tap)
        with suppress(SourceRefused):
            for vhost, in_vhost in names.items():
                self._ask("tap_read", vhost=vhost, taps=in_vhost, silence_s=NOTE_TIMEOUT_S)

    def taps(self) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = self._ask("taps")
        return answer

    def close(self) -> None:
        """Do nothing: the catalog keeps no file open."""

    def _ask(self, verb: str, **arguments: Any) -> Any:
        with restated((Unanswered, BadUsage), SourceRefused):
            return ask(self._folder, verb, **arguments)

    def _path(self, slot: SlotHandle) -> Path:
        if slot.snapshot is None:
            return self._slots / f"{slot.seal:020}.slot"
        snapshot, number = slot.snapshot
        return self._slots / "snapshots" / snapshot / f"{number}.slot"

    def _map(self, path: Path, slot: str) -> bytes | mmap.mmap:
        try:
            with path.open("rb") as file:
                if 0 < os.fstat(file.fileno()).st_size <= SMALL_BYTES:
                    return file.read()
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise SlotMissing(f"{slot} is gone: there is no {path}") from None
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise SourceRefused(f"{slot} cannot be read: {path}: {error}") from None


Catalog = StoreCatalog | HttpCatalog
"""The slots of one broker. Methods raise SourceRefused if the broker or the data folder cannot provide an answer."""


def open_catalog(path: str | None = None, url: str | None = None) -> Catalog:
    """Return the catalog of a data folder, or of the broker at an http(s) URL. No request is made.

    Raises: SourceRefused if neither or both are given, or the given one is invalid.
    """
    if (path is None) == (url is None):
        raise SourceRefused(
            "say where the broker is: option path (its data folder) or url (http://user:password@host:15672); "
            + NO_TABLE
        )
    if path is not None:
        return StoreCatalog(path)
    assert url is not None
    return HttpCatalog(url)


def open_handle(catalog: Catalog, slot: SlotHandle) -> SlotView:
    """Return a view of the slot file of a handle. Raises: SlotMissing, SlotDamaged, SourceRefused."""
    block = catalog.fetch_slot(slot)
    try:
        view = open_slot(block, slot.crc)
    except BadSlotFile as error:
        _check_history(catalog, slot, block)
        raise SlotDamaged(f"{slot} ({catalog.location(slot)}): {error}") from None
    if wrong := slot.differs_from(view.meta):
        raise SlotDamaged(f"{slot} ({catalog.location(slot)}): {wrong}")
    return view


def _check_history(catalog: Catalog, slot: SlotHandle, block: Any) -> None:
    """Raise SlotMissing if the file is intact but belongs to another history than its handle."""
    with suppress(BadSlotFile):
        meta = open_slot(block).meta
        if slot.snapshot is None and (meta.store, meta.incarnation) != (slot.store, slot.incarnation):
            where = catalog.location(slot)
            raise SlotMissing(f"{slot} is gone: {where} is of another history, as of a copy that was put back")
