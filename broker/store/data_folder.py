"""The data folder: locked by one broker at a time, with a folder for each vhost.

    lock                  locked while a broker runs
    control.sock          see `control`
    format                the version of the layout
    incarnation           a random number that is unique to the last start
    clock                 see `clock_file`
    definitions           see `definitions_file`
    begun                 exists from the end of the first start on: see `DataFolder.has_begun`
    reserve               see `Reserve`
    slots/                slot files; see `slot_folder`
    backup.staging/       see `backup`
    cluster/<name>/       data that a cluster node has paged out; nothing in it outlives the process
    vhosts/<name>/        one store; see `folder_name` for the name
    vhosts/%removed-<n>/  the remains of a removed vhost; no vhost has such a name

Inside a store: log/ spill/ queues/ checkpoint-<number> running, and name, when the folder's name does not contain it.

The name of a vhost is any UTF-8. Every byte except letters, digits, - and _ is written as %xx, and the empty name as %.
A name that is too long in this form is written as %% and its SHA-256; the file `name` in the folder contains it.
"""

from __future__ import annotations

import re
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from broker.event_log import get_logger
from broker.store.backup import REMOVED, STAGING, UNFINISHED
from broker.store.damage import (
    CorruptFile,
    FolderUnwritable,
    LinkedFolder,
    NewerFormat,
    NoDataFolder,
    OlderFormat,
    StoreFailed,
)
from broker.store.files import LINK, File, Files

RESERVE_NAME: Final = "reserve"
RESERVE_PIECE_BYTES: Final = 8 * 1024 * 1024  # allocated in one call, or written where the system cannot allocate
ESCAPED_MAX: Final = 200  # most file systems allow names of 255 bytes
EMPTY_NAME: Final = "%"  # not an escape, in which two digits follow the %
DIGEST_PREFIX: Final = "%%"
_log = get_logger()

FORMAT: Final = 3  # formats 1 and 2 belong to versions that were never released
INCARNATION_BYTES: Final = 16
BEGUN: Final = "begun"
WRITABLE: Final = 0o022  # by the group or by all
OPEN_TO_OTHERS: Final = "other users of this machine can replace the broker's files with their own"

_STAMP: Final = re.compile(rb"slotmq data folder, format (\d{1,9})\n")


class Reserve:
    """The reserve: disk space set aside in a folder, so that a broker can start on a full disk and be drained.

    A start frees the reserve before it recovers anything, and allocates it again, piece by piece, once the disk has as
    much other free space. Until then the missing part does not count as free, and the disk alarm is raised:
    publishers cannot use the space that acks and checkpoints need, although other programs can. All methods are
    *blocking*: `free_bytes` as long as a `statvfs`, `allocate_piece` as long as the allocation of a piece.

    Units: `size_bytes` is the configured reserve, `missing_bytes` the part of it that is not allocated.
    """

    def __init__(self, files: Files, folder: Path, size_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._path = folder / RESERVE_NAME
        self.size_bytes = size_bytes
        self.missing_bytes = size_bytes

    def delete(self) -> None:
        """Free the reserve left by the last run. Raises: StoreFailed."""
        self.missing_bytes = self.size_bytes
        if self._files.exists(self._path):
            self._files.remove(self._path)
            self._files.sync_folder(self._folder)  # some file systems free the blocks only then

    def free_bytes(self) -> int:
        """Return the free space of the disk less the missing part of the reserve."""
        return max(0, self._files.free_bytes(self._folder) - self.missing_bytes)

    def allocate(self) -> None:
        """Allocate as much of the reserve as there is room for. *Blocking.*"""
        while self.allocate_piece():
            pass

    def allocate_piece(self) -> bool:
        """Allocate the next piece of the reserve if there is room; return whether it was allocated.

        A piece that the system refuses, for example by a quota, is logged; the next call tries it again.
        """
        if not self.missing_bytes or self.free_bytes() < self.size_bytes:
            return False
        piece_bytes = min(RESERVE_PIECE_BYTES, self.missing_bytes)
        try:
            with self._files.open(self._path, create=True) as file:
                file.allocate(self.size_bytes - self.missing_bytes, piece_bytes)
        except StoreFailed as error:
            _log.warning("disk.reserve_refused", reason=str(error), missing_bytes=self.missing_bytes)
            return False
        self.missing_bytes -= piece_bytes
        return True


def folder_name(vhost: str) -> str:
    """Return the folder name of a vhost; it is unique, and without a path separator."""
    escaped = quote(vhost, safe="").replace(".", "%2E").replace("~", "%7E") or EMPTY_NAME
    return escaped if len(escaped) <= ESCAPED_MAX else DIGEST_PREFIX + sha256(vhost.encode()).hexdigest()


def vhost_name(folder: str) -> str | None:
    """Return the vhost of a folder name, or None for a digest and for other names."""
    vhost = "" if folder == EMPTY_NAME else unquote(folder)
    return vhost if folder_name(vhost) == folder else None


class DataFolder:
    """A data folder that this process has locked until `close`.

    Shapes: `incarnation` is 32 hex digits, new at each start, by which a reader detects that the broker was
        restarted, or restored from a copy.
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
        """Lock the folder and return it; create it if it is missing, and delete what removed vhosts and backups left.

        The folder itself is locked, so that deleting a file cannot let a second broker in. The file `lock` protects
        folders that cannot be locked. The space of the reserve is free until its pieces are allocated again. The
        folder may be a symbolic link, and must not contain one.
        Raises: FolderBusy when another broker uses it; FolderUnwritable when it cannot be created, read or written;
            LinkedFolder; NewerFormat, OlderFormat when another version wrote it, NoDataFolder when another program did.
            Except with FolderUnwritable, nothing in it is changed, but the file `lock` may be created.
        """
        try:
            new = [folder for folder in (path, *path.parents) if not files.exists(folder)]
            if new:
                files.make_folder(path)
            check_links(files, path)
            for folder in new:
                files.sync_folder(folder.parent)
            locks = [files.lock_folder(path)]
            try:
                locks.append(files.lock(path / "lock"))
                cls._check_format(files, path)
                files.make_folder(path / "vhosts")
                reserve = Reserve(files, path, reserve_bytes)
                reserve.delete()
                opened = cls(files, path, locks, cls._begin_incarnation(files, path), reserve)
                opened._remove_left_over()
            except BaseException:
                _close(locks)
                raise
        except StoreFailed as error:
            raise FolderUnwritable(path, error.reason) from error
        mode = files.mode(path)
        if mode & WRITABLE:  # not refused, because Kubernetes creates an emptyDir with this mode
            _log.warning("data_folder.open_to_others", folder=str(path), mode=f"{mode:o}", reason=OPEN_TO_OTHERS)
        return opened

    @staticmethod
    def _check_format(files: Files, path: Path) -> None:
        stamp = path / "format"
        found = files.read(stamp) if files.exists(stamp) else b""
        head = _STAMP.fullmatch(found)
        if found == UNFINISHED:
            raise NoDataFolder(path, "an unfinished backup; remove it, and make another")
        if found and head is None:
            raise NoDataFolder(path, "its file 'format' is not SlotMQ's")
        if head is None:
            if any(files.exists(path / name) for name in ("incarnation", "definitions")):
                raise NoDataFolder(path, "its file 'format' is missing")
            files.replace(stamp, [b"slotmq data folder, format %d\n" % FORMAT]).close()
        elif int(head[1]) > FORMAT:
            raise NewerFormat(path, int(head[1]), FORMAT)
        elif int(head[1]) < FORMAT:
            raise OlderFormat(path, int(head[1]), FORMAT)

    @staticmethod
    def _begin_incarnation(files: Files, path: Path) -> str:
        """Return the incarnation of this start, and write it before anything is recovered or served.

        This syncs the folder, so the file `format` is on disk too, even if an earlier, killed start did not sync it.
        """
        incarnation = files.token(INCARNATION_BYTES).hex()
        files.replace(path / "incarnation", [b"slotmq incarnation, %b\n" % incarnation.encode()]).close()
        return incarnation

    @property
    def has_begun(self) -> bool:
        """Whether a start of a standalone broker has finished in this folder.

        From then on the folder has definitions, a log of slot files, and a log for each vhost that the definitions
        name. If one is missing later, it was lost; before that, it had not been written yet.
        """
        return self.files.exists(self.path / BEGUN)

    def note_begun(self) -> None:
        """Record that all parts of the data folder are on disk. Raises: StoreFailed."""
        if not self.has_begun:
            self.files.replace(self.path / BEGUN, [b"slotmq data folder, begun\n"]).close()

    def list_vhosts(self) -> list[str]:
        """Return the names of the vhosts that have a folder, sorted.

        Raises: CorruptFile when the name of a store cannot be read; StoreFailed.
        """
        names = []
        for entry in self.files.list(self._vhosts):
            folder = self._vhosts / entry
            is_digest = entry.startswith(DIGEST_PREFIX)
            name = self._read_name(folder) if is_digest else vhost_name(entry)
            if name is not None:
                names.append(name)
            elif is_digest and self.files.exists(folder / "log"):
                raise CorruptFile(folder / "name", "it does not name the vhost of this folder")
        return sorted(names)

    def vhost_folder(self, name: str) -> Path:
        """Return the folder of a vhost's store, which `VhostStore.open` creates.

        A folder that cannot be named after the vhost is created here, together with its file `name`. Raises:
        StoreFailed.
        """
        folder = self._vhosts / folder_name(name)
        if folder.name.startswith(DIGEST_PREFIX) and self._read_name(folder) != name:
            self.files.make_folder(folder)
            self.files.replace(folder / "name", [name.encode()]).close()
            self.files.sync_folder(self._vhosts)
        return folder

    def empty_folder(self, name: str) -> Path:
        """Remove the folder of a vhost of a cluster node and return its path. *Blocking.* Raises: StoreFailed."""
        folder = self.path / "cluster" / folder_name(name)
        if self.files.exists(folder):
            self.files.remove_tree(folder)
        self.files.make_folder(folder.parent)
        return folder

    def remove_vhost(self, name: str) -> None:
        """Remove the folder of a vhost whose store is closed, if it exists. *Blocking.*

        When it returns, the removal is durable; after an earlier crash, either all of the vhost exists or nothing.
        Raises: StoreFailed.
        """
        folder = self._vhosts / folder_name(name)
        if not self.files.exists(folder):
            return
        removed = next(path for n in count(1) if not self.files.exists(path := self._vhosts / f"{REMOVED}{n}"))
        self.files.rename(folder, removed)
        self.files.sync_folder(self._vhosts)  # otherwise a crash could restore the old name, with half of the files
        self.files.remove_tree(removed)

    def _remove_left_over(self) -> None:
        if self.files.exists(self.path / STAGING):
            self.files.remove_tree(self.path / STAGING)
        for entry in self.files.list(self._vhosts):
            if entry.startswith(REMOVED):
                self.files.sync_folder(self._vhosts)  # the new name may be only in the page cache
                self.files.remove_tree(self._vhosts / entry)

    def _read_name(self, folder: Path) -> str | None:
        """Return the vhost in the file `name` of a folder, or None if it is missing or names another folder's vhost."""
        path = folder / "name"
        if not self.files.exists(path):
            return None
        name = self.files.read(path).decode(errors="replace")
        return name if folder_name(name) == folder.name else None

    def close(self) -> None:
        """Release the locks. A second call does nothing."""
        _close(self._locks)


def check_links(files: Files, path: Path) -> None:
    """Check that no entry of the data folder, its folder vhosts or a vhost's folder is a symbolic link.

    A file that becomes a link later is not followed either: see `Files.open`. Raises: LinkedFolder, StoreFailed.
    """
    _check_links(files, path)
    vhosts = path / "vhosts"
    if files.is_folder(vhosts):
        _check_links(files, vhosts)
        for folder in [vhosts / entry for entry in files.list(vhosts)]:
            if files.is_folder(folder):
                _check_links(files, folder)


def _check_links(files: Files, folder: Path) -> None:
    for name in files.links(folder)[:1]:
        raise LinkedFolder(f"{folder / name}: {LINK}; replace it with its target, or mount the target there")


def _close(locks: list[File]) -> None:
    while locks:
        locks.pop().close()
