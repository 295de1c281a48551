"""The data folder: locked by one broker at a time, with a folder for each vhost.

    lock                  held while a broker runs
    format                which version of the layout this is
    incarnation           a random number of the start that was the last here, which no other start has
    clock                 see `clock_file`
    definitions           see `definitions_file`
    reserve               see `reserve`
    slots/                what taps keep; see `slot_folder`
    vhosts/<name>/        one store; `folder_name` says how the vhost's name is written
    vhosts/%removed-<n>/  what is left of a vhost that was removed; no vhost's name is written so

Inside a store: log/ spill/ queues/ checkpoint-<number> running, and name when the folder's own does not say it.
"""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import Final

from broker.store.backup import REMOVED, STAGING, UNFINISHED
from broker.store.damage import CorruptFile, FolderUnwritable, NewerFormat, NoDataFolder, StoreFailed
from broker.store.files import File, Files
from broker.store.folder_name import folder_name, is_digest, vhost_name
from broker.store.reserve import Reserve
from broker.store.whole_file import replace_file

__all__ = ["DataFolder"]

# What an older version wrote is read, and marked with this number before anything of this version is written: an older
# version would not know the users, rights and queue arguments of format 2, and would take the checksums of format 3 for
# damage. It refuses every number but its own.
FORMAT: Final = 3
INCARNATION_BYTES: Final = 16

_STAMP: Final = re.compile(rb"slotmq data folder, format (\d{1,9})\n")


class DataFolder:
    """A data folder that this process has for itself until ``close``.

    Shapes: ``incarnation`` is 32 hex digits, new at each start, so that a reader that kept one knows a broker that was
        restarted, or restored from a copy, from the one that it spoke to.
    """

    def __init__(self, files: Files, path: Path, locks: list[File], incarnation: str, reserve: Reserve) -> None:
        self.files = files
        self.path = path
        self.reserve = reserve
        self.incarnation = incarnation
        self._vhosts = path / "vhosts"
        self._locks = locks

    @classmethod
    def open(cls, files: Files, path: Path, *, reserve_bytes: int = 0) -> DataFolder:
        """Make the folder if need be, locks it and return it, without what was left of removed vhosts.

        The folder itself is locked, so that no deletion of a file lets a second broker in; the file `lock` keeps older
        versions out, and is what there is where a folder cannot be locked. The disk has the space of the reserve until
        the pieces of it are taken again.
        Raises: FolderBusy when another broker has it; FolderUnwritable when it cannot be made or written; NewerFormat
            when a later version wrote it; NoDataFolder when something else did.
        """
        try:
            new = [folder for folder in (path, *path.parents) if not files.exists(folder)]
            files.make_folder(path)
            files.make_folder(path / "vhosts")
            for folder in new:
                files.sync_folder(folder.parent)
            locks = [files.lock_folder(path)]
            try:
                locks.append(files.lock(path / "lock"))
                cls._check_format(files, path)
                reserve = Reserve(files, path, reserve_bytes)
                reserve.give_up()
                opened = cls(files, path, locks, cls._begin_incarnation(files, path), reserve)
                opened._remove_left_over()
            except BaseException:
                _close(locks)
                raise
        except StoreFailed as error:
            raise FolderUnwritable(path, error.reason) from error
        return opened

    @staticmethod
    def _check_format(files: Files, path: Path) -> None:
        stamp = path / "format"
        found = files.read(stamp) if files.exists(stamp) else b""
        head = _STAMP.fullmatch(found)
        if found == UNFINISHED:
            raise NoDataFolder(path, "a backup that was not finished; remove it, and make another")
        if found and head is None:
            raise NoDataFolder(path, "its file 'format' is not SlotMQ's")
        number = int(head[1]) if head is not None else 0
        if number > FORMAT:
            raise NewerFormat(path, number, FORMAT)
        if number < FORMAT:
            replace_file(files, stamp, b"slotmq data folder, format %d\n" % FORMAT)

    @staticmethod
    def _begin_incarnation(files: Files, path: Path) -> str:
        """Return the incarnation of this start, which is on disk before anything else is written or served.

        The sync of the folder also covers the stamp, whose rename a killed start may have left in the page cache alone.
        """
        incarnation = files.token(INCARNATION_BYTES).hex()
        replace_file(files, path / "incarnation", b"slotmq incarnation, %b\n" % incarnation.encode())
        return incarnation

    def list_vhosts(self) -> list[str]:
        """Return the names of the vhosts that have a folder here, sorted.

        Raises: CorruptFile when there is a store whose name cannot be read; StoreFailed.
        """
        names = []
        for entry in self.files.list(self._vhosts):
            folder = self._vhosts / entry
            name = self._read_name(folder) if is_digest(entry) else vhost_name(entry)
            if name is not None:
                names.append(name)
            elif is_digest(entry) and self.files.exists(folder / "log"):
                raise CorruptFile(folder / "name", "it does not say which vhost this folder is")
        return sorted(names)

    def vhost_folder(self, name: str) -> Path:
        """Return the folder of a vhost's store, which `VhostStore.open` makes.

        One that cannot have the vhost's name is made here, so that it never is without that. Raises: StoreFailed.
        """
        folder = self._vhosts / folder_name(name)
        if is_digest(folder.name) and self._read_name(folder) != name:
            self.files.make_folder(folder)
            file = self.files.open(folder / "name", create=True)
            try:
                file.truncate(0)
                file.write_at(0, name.encode())
                file.sync()
            finally:
                file.close()
            self.files.sync_folder(folder)
            self.files.sync_folder(self._vhosts)
        return folder

    def remove_vhost(self, name: str) -> None:
        """Remove a vhost's folder, whose store is closed. *Blocking.* One that is not there is well.

        When it returns, the vhost is gone for good; after an accident before that, all of it is there or nothing.
        Raises: StoreFailed.
        """
        folder = self._vhosts / folder_name(name)
        if not self.files.exists(folder):
            return
        gone = next(path for n in count(1) if not self.files.exists(path := self._vhosts / f"{REMOVED}{n}"))
        self.files.rename(folder, gone)
        self.files.sync_folder(self._vhosts)  # or the old name could come back to half of it
        self.files.remove_tree(gone)

    def _remove_left_over(self) -> None:
        if self.files.exists(self.path / STAGING):
            self.files.remove_tree(self.path / STAGING)
        for entry in self.files.list(self._vhosts):
            if entry.startswith(REMOVED):
                self.files.sync_folder(self._vhosts)  # the new name may be in the page cache alone
                self.files.remove_tree(self._vhosts / entry)

    def _read_name(self, folder: Path) -> str | None:
        """Return the vhost that the file in a folder names, None when it names none that has this folder."""
        path = folder / "name"
        if not self.files.exists(path):
            return None
        name = self.files.read(path).decode(errors="replace")
        return name if folder_name(name) == folder.name else None

    def close(self) -> None:
        """Give the locks back. Once more changes nothing."""
        _close(self._locks)


def _close(locks: list[File]) -> None:
    while locks:
        locks.pop().close()
