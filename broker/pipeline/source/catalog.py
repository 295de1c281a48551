"""The catalog of a broker's slots: on its data folder, or over its HTTP server, with one interface.

A local or mounted data folder can be read while the broker is stopped.
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
TOLD_S: Final = 2.0
PART_BYTES: Final = 1 << 20  # of a seal log, many of its lines
SMALL_BYTES: Final = 1 << 16  # a smaller file is read at once, which costs less than mapping it


class SealReader:
    """Read the new lines of a seal log with each view.

    Invariant: continues after the last whole line that was read; starts over when the log is another file, or when the
        bytes before that place have changed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start_over(0)

    def _start_over(self, inode: int) -> None:
        self._inode = inode
        self._at = 0
        self._before = b""  # the last bytes before that place
        self._view = SealView()

    def view(self) -> SealView:
        """Return the current state of the log; the same view while the log only grows. Raises: SourceRefused."""
        try:
            with self._path.open("rb") as log:
                while self._fold(self._news(log)):
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
        """Fold the whole lines of a block into the view, and return whether it had any."""
        lines, size = decode_lines(block)
        for line in lines:
            self._view.fold(line)
        self._at += size
        self._before = (self._before + block[:size])[-REMEMBERED_BYTES:]
        return size > 0

    def _news(self, log: BinaryIO) -> bytes:
        """Return the next bytes of the log, a part of a long one."""
        inode = os.fstat(log.fileno()).st_ino
        log.seek(self._at - len(self._before))
        block = log.read(len(self._before) + PART_BYTES)
        if inode == self._inode and block.startswith(self._before):
            return block[len(self._before) :]
        # Rewritten, and renamed to this name; a file system may reuse an inode.
        self._start_over(inode)
        log.seek(0)
        return log.read(PART_BYTES)


class StoreCatalog:
    """Read the files, and call the running broker over its control socket for the rest."""

    partial = False  # a user who may open the folder may read all of it

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Check the arguments. Raises: SourceRefused for a URL."""
        self._folder = local_path(os.fspath(path), SourceRefused).absolute()
        self.address = str(self._folder)
        self._slots = self._folder / "slots"
        self._reader = SealReader(self._slots / "seals.log")

    def view(self) -> SealView:
        """Return the current state of the seal log. The next call changes the view."""
        return self._reader.view()

    def fetch_slot(self, slot: SlotHandle) -> Any:
        """Return a slot file, of a seal or of a snapshot, mapped if it is large. Raises: SlotMissing."""
        return self._map(self._path(slot), str(slot))

    def location(self, slot: SlotHandle) -> str:
        """Return the path of a slot file."""
        return str(self._path(slot))

    def snapshot(self, vhost: str, queue: str) -> list[SlotHandle]:
        """Return slots of a queue's current contents; the broker keeps them for an hour."""
        return SlotHandle.of_snapshot(self._ask("snapshot", vhost=vhost, queue=queue), vhost, queue)

    def seal_now(self, vhost: str | None = None, tap: str | None = None) -> int:
        """Seal the open slots, and return the last seal."""
        answer = self._ask("seal", vhost=vhost, tap=tap)
        return int(answer["last_seal"])

    def set_cursor(self, name: str, vhost: str, tap: str, seal: int, incarnation: str) -> None:
        """Record that a reader has passed a seal of a start; create the cursor if needed, and never move it back."""
        self._ask("cursor_set", name=name, vhost=vhost, tap=tap, seal=seal, incarnation=incarnation)

    def remove_cursor(self, name: str, vhost: str, tap: str) -> None:
        self._ask("cursor_remove", name=name, vhost=vhost, tap=tap)

    def note_read(self, taps: Iterable[tuple[str, str]]) -> None:
        """Tell the running broker which taps are read, so that it writes their slot files sooner. Ignore a broker that
        does not answer soon.
        """
        names: dict[str, list[str]] = {}
        for vhost, tap in sorted(taps):
            names.setdefault(vhost, []).append(tap)
        with suppress(SourceRefused):
            for vhost, those in names.items():
                self._ask("tap_read", vhost=vhost, taps=those, silence_s=TOLD_S)

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
"""The slots of one broker. Every method raises SourceRefused when it cannot answer."""


def open_catalog(path: str | None = None, url: str | None = None) -> Catalog:
    """Return the catalog of a data folder, or of the broker at an http(s) URL, without a request.

    Raises: SourceRefused when neither or both are given.
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
    """Return the slot of a handle. Raises: SlotMissing, SlotDamaged when the file is not that of the handle."""
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
    """Refuse a whole file that another start of the broker wrote. Raises: SlotMissing."""
    with suppress(BadSlotFile):
        meta = open_slot(block).meta
        if slot.snapshot is None and (meta.store, meta.incarnation) != (slot.store, slot.incarnation):
            where = catalog.location(slot)
            raise SlotMissing(f"{slot} is gone: {where} is of another history, as of a copy that was put back")
