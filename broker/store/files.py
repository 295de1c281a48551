"""Files: the only module of the store that calls the file system. Tests replace `Files` with a class that loses data.

Unless it says otherwise, a method raises StoreFailed when the operating system reports an error. No write or sync is
retried, because after a failed sync the kernel may have dropped the dirty pages and a second sync would falsely succeed
(PostgreSQL's "fsyncgate", 2018).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Final, Self, TypeVar

from broker.store.damage import FolderBusy, StoreFailed

PAGE_BYTES: Final = mmap.PAGESIZE
_FILE_MODE: Final = 0o600  # only the account of the broker may read messages
_FOLDER_MODE: Final = 0o700
LINK: Final = "a symbolic link, which the broker does not follow in its data folder"
PIECES_AT_ONCE: Final = 1000  # joined by `replace`
BLOCKS_MAX: Final = 1024  # written in one call: IOV_MAX of Linux and macOS
WRITE_MAX_BYTES: Final = 1 << 20  # in one call: Linux 6.18 puts more into huge pages, which virtual machines back late
_RWF_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)  # Linux
_O_DIRECT: Final = getattr(os, "O_DIRECT", 0)  # macOS has none
Opened = TypeVar("Opened")

SPARES: Final = 16
OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)


class SpareDescriptors:
    """Spare descriptors, for any thread: the store opens files with them when clients have used up all others.

    The broker ends when its store cannot open a file, so clients could end it by opening connections until no
    descriptor is left. Therefore a few unused descriptors are kept open, and closed when one is needed.
    Invariant: there are never more than `count` + 1, because they are opened in pairs.
    """

    def __init__(self, count: int = SPARES) -> None:
        self._count = count
        self._lock = Lock()
        self._spares: list[int] = []

    def opening(self, opens: Callable[[], Opened]) -> Opened:
        """Return the result of a call that opens a file; when no descriptor is left, close a spare one and try again.

        Raises: OSError, also when no spare descriptor is left.
        """
        while True:
            try:
                opened = opens()
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS or not self._close_one():
                    raise
            else:
                if len(self._spares) < self._count:
                    self._refill()
                return opened

    def _close_one(self) -> bool:
        with self._lock:
            if not self._spares:
                return False
            os.close(self._spares.pop())
            return True

    def _refill(self) -> None:
        with self._lock:
            while len(self._spares) < self._count:
                try:
                    self._spares += os.pipe()  # a pipe needs no file, and has two descriptors
                except OSError:
                    return


def aligned_memory(size: int) -> memoryview:
    """Return page-aligned memory, which direct writes need."""
    return memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


_SPARES: Final = SpareDescriptors()  # for the whole process, like the limit


class _Failing:
    """A context that turns an OSError into StoreFailed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            reason = LINK if error.errno == errno.ELOOP else error.strerror or str(error)
            raise StoreFailed(self._path, reason) from error


class File:
    """One open file, read and written by offset, so that threads share it without a lock.

    Shapes: `direct` is False once direct writes are known to be unsupported.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.direct = _O_DIRECT != 0
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

    def read_cached(self, offset: int, size: int) -> bytes | None:
        """Return the result of `read_at` if it needs no disk access, or None otherwise. Never waits."""
        block = bytearray(size)
        try:
            done = os.preadv(self._descriptor, [block], offset, _RWF_NOWAIT) if _RWF_NOWAIT else 0
            whole = done == size or (done > 0 and offset + done == os.fstat(self._descriptor).st_size)
        except OSError:  # not in the page cache, or not supported by the file system
            return None
        return bytes(block[:done]) if whole else None

    def write_at(self, offset: int, block: bytes) -> None:
        """Write the whole block at `offset`, into the page cache."""
        try:  # on the path of each publish: a context manager would add six calls
            first = block if len(block) <= WRITE_MAX_BYTES else memoryview(block)[:WRITE_MAX_BYTES]
            done = os.pwrite(self._descriptor, first, offset)
            while done < len(block):
                part = memoryview(block)[done : done + WRITE_MAX_BYTES]
                done += os.pwrite(self._descriptor, part, offset + done)
        except OSError as error:
            raise StoreFailed(self.path, error.strerror or str(error)) from error

    def write_blocks_at(self, offset: int, blocks: list[bytes]) -> int:
        """Write blocks one after another from `offset` without a copy, as `write_at` does, and return their end.

        Cost: one call per WRITE_MAX_BYTES or BLOCKS_MAX blocks; after each call the thread waits for Python's lock.
        """
        at = 0
        while at < len(blocks):
            stop, size = at + 1, len(blocks[at])
            while stop < min(len(blocks), at + BLOCKS_MAX) and size + len(blocks[stop]) <= WRITE_MAX_BYTES:
                size += len(blocks[stop])
                stop += 1
            if stop == at + 1:
                self.write_at(offset, blocks[at])
            else:
                self._write_some(offset, blocks[at:stop], size)
            offset += size
            at = stop
        return offset

    def _write_some(self, offset: int, blocks: list[bytes], size: int) -> None:
        """Write blocks of `size` bytes together in one call."""
        try:
            done = os.pwritev(self._descriptor, blocks, offset)
        except OSError as error:
            raise StoreFailed(self.path, error.strerror or str(error)) from error
        if done < size:
            self.write_at(offset + done, b"".join(blocks)[done:])

    def write_pages_at(self, offset: int, pages: memoryview) -> None:
        """Write whole pages of aligned memory at a page of the file, bypassing the page cache if the system can.

        Invariant: only one thread at a time writes to this open file, because the mode of its descriptor changes.
        """
        done = 0
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, _O_DIRECT)
            try:
                done = os.pwrite(self._descriptor, pages, offset)
            finally:
                fcntl.fcntl(self._descriptor, fcntl.F_SETFL, 0)
        except OSError as error:
            if error.errno != errno.EINVAL:  # the file system does not support direct writes, or has larger units
                raise StoreFailed(self.path, error.strerror or str(error)) from error
            self.direct = False
        if done < len(pages):
            self.write_at(offset + done, bytes(pages[done:]))

    def write_zeros(self, offset: int, size: int) -> None:
        """Write up to `size` zeros at `offset`, as many as fit on the disk."""
        try:
            os.pwrite(self._descriptor, bytes(size), offset)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFailed(self.path, error.strerror or str(error)) from error

    def size(self) -> int:
        with _Failing(self.path):
            return os.fstat(self._descriptor).st_size

    def allocate(self, offset: int, size: int) -> None:
        """Allocate `size` bytes at an offset, with undefined content."""
        with _Failing(self.path):
            try:
                os.posix_fallocate(self._descriptor, offset, size)
            except AttributeError:  # macOS has none
                self.write_at(offset, os.urandom(size))  # zeros might be compressed
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # the file system cannot allocate
                    raise
                self.write_at(offset, os.urandom(size))

    def truncate(self, size: int) -> None:
        with _Failing(self.path):
            os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """Sync the bytes of the file, and its size if it has changed; `Files.sync_folder` syncs its folder entry."""
        try:
            if sys.platform == "darwin":
                fcntl.fcntl(self._descriptor, fcntl.F_FULLFSYNC)  # fsync(2) leaves the bytes in the drive's cache
            else:
                os.fdatasync(self._descriptor)
        except OSError as error:
            raise StoreFailed(self.path, error.strerror or str(error)) from error

    def drop_cache(self) -> None:
        """Drop the page cache of the file, which after a failed sync may have bytes that are not on disk."""
        with _Failing(self.path):
            if hasattr(os, "posix_fadvise"):  # macOS has none
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def try_lock(self, folder: Path) -> OSError | None:
        """Lock the file for this process; return the reason when the file system cannot lock, else None.

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
        with _Failing(self.path):
            os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Files:
    """The files of the operating system."""

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open a file, which must not be a link; the folder entry of a created file is not synced. If links were
        followed, anyone who can write to the folder could have any file of this account read, truncated or written.
        """
        flags = os.O_RDWR if write or create else os.O_RDONLY
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        with _Failing(path):
            return File(path, _SPARES.opening(lambda: os.open(path, flags, _FILE_MODE)))

    def read(self, path: Path) -> bytes:
        with self.open(path) as file:
            return file.read_at(0, file.size())

    def exists(self, path: Path) -> bool:
        return os.path.exists(path)

    def links(self, folder: Path) -> list[str]:
        """Return the names of the symbolic links in a folder, sorted."""
        with _Failing(folder), _SPARES.opening(lambda: os.scandir(folder)) as entries:
            return sorted(entry.name for entry in entries if entry.is_symlink())

    def mode(self, folder: Path) -> int:
        """Return the permission bits of a folder, as chmod takes them."""
        with _Failing(folder):
            return os.stat(folder).st_mode & 0o7777

    def is_folder(self, path: Path) -> bool:
        """Return whether the path is a folder, not a link to one."""
        return os.path.isdir(path) and not os.path.islink(path)

    def size(self, path: Path) -> int:
        with _Failing(path):
            return os.stat(path).st_size

    def list(self, folder: Path) -> list[str]:
        """Return the names in a folder, sorted."""
        with _Failing(folder):
            return sorted(_SPARES.opening(lambda: os.listdir(folder)))

    def make_folder(self, folder: Path) -> None:
        """Create a folder with its parents, unless it exists; a link to one is refused."""
        with _Failing(folder):
            if os.path.islink(folder):
                raise OSError(errno.ELOOP, LINK)
            os.makedirs(folder, mode=_FOLDER_MODE, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, replacing any existing one, or a folder to an unused name, atomically."""
        with _Failing(source):
            os.replace(source, target)

    def replace(self, path: Path, pieces: Iterable[bytes], *, sync: bool = True) -> File:
        """Replace a file as a whole, and return it, open for writing. A crash leaves the old content or the new one.

        With `sync`, a power loss does, too, and content and name are on disk on return. Raises: StoreFailed, with the
        same outcome as a crash.
        """
        unfinished = path.with_name(f"{path.name}.unfinished")
        self.remove(unfinished)  # not reused: after a failed sync, later syncs of a file skip its dropped pages
        file = self.open(unfinished, create=True)
        try:
            end, left = 0, iter(pieces)
            while block := b"".join(islice(left, PIECES_AT_ONCE)):
                file.write_at(end, block)
                end += len(block)
            if sync:
                file.sync()
            self.rename(unfinished, path)
            if sync:
                self.sync_folder(path.parent)
        except BaseException:
            with suppress(StoreFailed):  # the first error is the one to raise
                file.close()
            raise
        return file

    def link(self, source: Path, target: Path) -> bool:
        """Make a hard link to a file that never changes again; return whether the disks allow it."""
        with _Failing(target):
            try:
                os.link(source, target)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
                    raise
                return False
            return True

    def remove(self, path: Path) -> None:
        """Remove a file, if it exists."""
        with _Failing(path), suppress(FileNotFoundError):
            os.unlink(path)

    def remove_folder(self, folder: Path) -> None:
        """Remove an empty folder, if it exists."""
        with _Failing(folder), suppress(FileNotFoundError):
            os.rmdir(folder)

    def remove_tree(self, path: Path) -> None:
        """Remove a file, or a folder with its content; do not follow links."""
        if not self.is_folder(path):
            self.remove(path)
            return
        for entry in self.list(path):
            self.remove_tree(path / entry)
        self.remove_folder(path)

    def sync_folder(self, folder: Path) -> None:
        """Sync the entries of a folder: files that were created, renamed or removed."""
        with _Failing(folder):
            descriptor = _SPARES.opening(lambda: os.open(folder, os.O_RDONLY | os.O_CLOEXEC))
            try:
                if sys.platform == "darwin":
                    fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
                else:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def lock(self, path: Path) -> File:
        """Lock a file; closing it, or the end of the process, releases the lock.

        Raises: FolderBusy when another process holds it; StoreFailed also when the file system cannot lock.
        """
        file = self.open(path, create=True)
        error = file.try_lock(path.parent)
        if error is not None:
            file.close()
            raise StoreFailed(path, error.strerror or str(error)) from error
        return file

    def lock_folder(self, folder: Path) -> File:
        """Lock a folder itself, which no removal of files can undo; closing the file releases the lock.

        A file system that cannot lock folders (NFS) leaves it unlocked: the lock of a file in it has to suffice.
        Raises: FolderBusy when another process holds it.
        """
        with _Failing(folder):
            file = File(folder, _SPARES.opening(lambda: os.open(folder, os.O_RDONLY | os.O_CLOEXEC)))
        file.try_lock(folder)
        return file

    def free_bytes(self, folder: Path) -> int:
        """Return the free bytes for this account on the disk of a folder."""
        with _Failing(folder):
            status = os.statvfs(folder)
            return status.f_bavail * status.f_frsize

    def disk_bytes(self, folder: Path) -> int:
        """Return the size of the disk of a folder."""
        with _Failing(folder):
            status = os.statvfs(folder)
            return status.f_blocks * status.f_frsize

    def token(self, size: int) -> bytes:
        """Return random bytes that cannot be guessed."""
        return os.urandom(size)
