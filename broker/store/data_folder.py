"""The data folder: locked by one broker at a time, with a folder for each vhost.

    lock              held while a broker runs
    format            which version of the layout this is
    vhosts/<name>/    one store; the name is the vhost's, every byte but letters, digits, - and _ as %xx

Inside a store: log/ spill/ queues/ checkpoint-<number> running.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from broker.amqp.errors import StoreFailed
from broker.store.damage import FolderUnwritable
from broker.store.files import File, Files

__all__ = ["DataFolder"]

FORMAT: Final = b"slotmq data folder, format 1\n"


class DataFolder:
    """A data folder that this process has for itself until ``close``."""

    def __init__(self, files: Files, path: Path, lock: File) -> None:
        self.files = files
        self.path = path
        self._lock = lock
        self._closed = False

    @classmethod
    def open(cls, files: Files, path: Path) -> DataFolder:
        """Makes the folder if need be, locks it and returns it.

        Raises: FolderBusy when another broker has it; FolderUnwritable when it cannot be made or written, or is of
            another format.
        """
        try:
            new = [folder for folder in (path, *path.parents) if not files.exists(folder)]
            files.make_folder(path)
            files.make_folder(path / "vhosts")
            for folder in new:
                files.sync_folder(folder.parent)
            lock = files.lock(path / "lock")
            try:
                cls._check_format(files, path)
            except BaseException:
                lock.close()
                raise
        except StoreFailed as error:
            raise FolderUnwritable(path, error.reason) from error
        return cls(files, path, lock)

    @staticmethod
    def _check_format(files: Files, path: Path) -> None:
        stamp = path / "format"
        found = files.read(stamp) if files.exists(stamp) else b""
        if found and found != FORMAT:
            raise FolderUnwritable(path, f"it says {found[:60]!r}, this version writes {FORMAT!r}")
        file = files.open(stamp, create=True)
        try:
            file.write_at(0, FORMAT)  # also when it is there: a folder that cannot be written is told now
            file.sync()
        finally:
            file.close()
        files.sync_folder(path)

    def vhosts(self) -> list[str]:
        """Returns the names of the vhosts that have a store here."""
        return sorted(unquote(name) for name in self.files.list(self.path / "vhosts"))

    def vhost_folder(self, name: str) -> Path:
        """Returns the folder of a vhost's store, which `VhostStore.open` makes."""
        return self.path / "vhosts" / quote(name, safe="").replace(".", "%2E").replace("~", "%7E")

    def free_bytes(self) -> int:
        """Returns how much the disk still takes."""
        return self.files.free_bytes(self.path)

    def close(self) -> None:
        """Gives the lock back. Once more changes nothing."""
        if not self._closed:
            self._closed = True
            self._lock.close()
