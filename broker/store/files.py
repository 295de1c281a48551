"""The only file calls of the broker. Everything above asks `Files`, so a twin can lose, tear and fail in its place.

Every method raises StoreFailed where the operating system refuses; nothing is retried, because after a failed sync the
kernel may have dropped the dirty pages and a second sync would succeed falsely (PostgreSQL's "fsyncgate", 2018).
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Final

from broker.store.damage import FolderBusy, StoreFailed
from broker.store.spare_descriptors import SpareDescriptors

__all__ = ["File", "Files"]

_FILE_MODE: Final = 0o600  # messages are private to the account that runs the broker
_FOLDER_MODE: Final = 0o700
_SPARES: Final = SpareDescriptors()  # of the process, as the limit is


def _sync(descriptor: int) -> None:
    """Return when a file's bytes are on disk, and its size when it changed."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # its fsync(2) leaves them in the drive's cache
    else:
        os.fdatasync(descriptor)


def _sync_entries(descriptor: int) -> None:
    """Return when a folder's entries are on disk."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


class _Failing:
    """Turns an OSError of the calls inside it into StoreFailed."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise StoreFailed(self._path, error.strerror or str(error)) from error


class File:
    """One open file, read and written by offset, so that threads share it without a lock."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def read_at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset`, fewer only at the end of the file."""
        with _Failing(self.path):
            block = os.pread(self._descriptor, size, offset)
            if len(block) == size or not block:
                return block
            pieces = [block]
            have = len(block)
            while have < size:
                block = os.pread(self._descriptor, size - have, offset + have)
                if not block:
                    break
                pieces.append(block)
                have += len(block)
            return b"".join(pieces)

    def write_at(self, offset: int, block: bytes) -> None:
        """Write all of the block to `offset`; it is in the page cache then, not on disk."""
        with _Failing(self.path):
            done = os.pwrite(self._descriptor, block, offset)
            while done < len(block):
                done += os.pwrite(self._descriptor, memoryview(block)[done:], offset + done)

    def size(self) -> int:
        """Return the file's length in bytes."""
        with _Failing(self.path):
            return os.fstat(self._descriptor).st_size

    def allocate(self, offset: int, size: int) -> None:
        """Have the disk keep room for `size` bytes at an offset, whose content does not matter."""
        with _Failing(self.path):
            try:
                os.posix_fallocate(self._descriptor, offset, size)
            except AttributeError:  # macOS has none
                self.write_at(offset, os.urandom(size))  # zeros might be compressed
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # not every file system can
                    raise
                self.write_at(offset, os.urandom(size))

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        with _Failing(self.path):
            os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """Return when the file's bytes are on disk; its folder entry is synced by `Files.sync_folder`."""
        with _Failing(self.path):
            _sync(self._descriptor)

    def drop_cache(self) -> None:
        """Has the next reads come from the disk: after a failed sync the page cache shows what is not there."""
        with _Failing(self.path):
            if hasattr(os, "posix_fadvise"):  # macOS has none
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def try_lock(self, folder: Path) -> OSError | None:
        """Take the file's lock for this process; return why the file system cannot lock it, None when it did.

        Raises: FolderBusy, naming the folder, when another process holds the lock; the file is closed then.
        """
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise FolderBusy(folder) from error
        except OSError as error:
            return error
        return None

    def close(self) -> None:
        """Give the descriptor back."""
        with _Failing(self.path):
            os.close(self._descriptor)


class Files:
    """The operating system's files."""

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open a file; creating it leaves its folder entry unsynced."""
        flags = os.O_CLOEXEC | (os.O_RDWR if write or create else os.O_RDONLY) | (os.O_CREAT if create else 0)
        with _Failing(path):
            return File(path, _SPARES.opening(lambda: os.open(path, flags, _FILE_MODE)))

    def read(self, path: Path) -> bytes:
        """Return a whole file."""
        file = self.open(path)
        try:
            return file.read_at(0, file.size())
        finally:
            file.close()

    def exists(self, path: Path) -> bool:
        """Return whether there is such a file or folder."""
        return os.path.exists(path)

    def is_folder(self, path: Path) -> bool:
        """Return whether there is a folder of that name; a link to one is none."""
        return os.path.isdir(path) and not os.path.islink(path)

    def size(self, path: Path) -> int:
        """Return the length in bytes of a file that is not open."""
        with _Failing(path):
            return os.stat(path).st_size

    def list(self, folder: Path) -> list[str]:
        """Return the names in a folder, sorted."""
        with _Failing(folder):
            return sorted(_SPARES.opening(lambda: os.listdir(folder)))

    def make_folder(self, folder: Path) -> None:
        """Make a folder with its parents; one that is there already is well."""
        with _Failing(folder):
            os.makedirs(folder, mode=_FOLDER_MODE, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, replacing what has that name, or a folder one that is free; in one step."""
        with _Failing(source):
            os.replace(source, target)

    def link(self, source: Path, target: Path) -> bool:
        """Give a file that is never changed again a second name; tell whether the disk, or the two, can do that."""
        with _Failing(target):
            try:
                os.link(source, target)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
                    raise
                return False
            return True

    def remove(self, path: Path) -> None:
        """Remove a file; one that is gone already is well."""
        with _Failing(path):
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass

    def remove_folder(self, folder: Path) -> None:
        """Remove an empty folder; one that is gone already is well."""
        with _Failing(folder):
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                pass

    def remove_tree(self, path: Path) -> None:
        """Remove a file, or a folder with all that is in it; links are not followed."""
        if not self.is_folder(path):
            self.remove(path)
            return
        for entry in self.list(path):
            self.remove_tree(path / entry)
        self.remove_folder(path)

    def sync_folder(self, folder: Path) -> None:
        """Return when the folder's entries (files created, renamed, removed) are on disk."""
        with _Failing(folder):
            descriptor = _SPARES.opening(lambda: os.open(folder, os.O_RDONLY | os.O_CLOEXEC))
            try:
                _sync_entries(descriptor)
            finally:
                os.close(descriptor)

    def lock(self, path: Path) -> File:
        """Take the lock that a file stands for; closing the file, or the end of the process, gives it back.

        Raises: FolderBusy when another process holds it.
        """
        file = self.open(path, create=True)
        error = file.try_lock(path.parent)
        if error is not None:
            file.close()
            raise StoreFailed(path, error.strerror or str(error)) from error
        return file

    def lock_folder(self, folder: Path) -> File:
        """Take the lock of a folder itself, which stays whatever is removed in it; closing the file gives it back.

        A file system that cannot lock folders (NFS) leaves it unlocked: a lock of a file in the folder has to do there.
        Raises: FolderBusy when another process holds it.
        """
        with _Failing(folder):
            file = File(folder, _SPARES.opening(lambda: os.open(folder, os.O_RDONLY | os.O_CLOEXEC)))
        file.try_lock(folder)
        return file

    def free_bytes(self, folder: Path) -> int:
        """Return how much the disk of a folder still takes from this account."""
        with _Failing(folder):
            status = os.statvfs(folder)
            return status.f_bavail * status.f_frsize

    def token(self, size: int) -> bytes:
        """Return random bytes that nobody can guess."""
        return os.urandom(size)
