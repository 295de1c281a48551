"""A backup: a copy of the data folder of a running broker, as consistent as the files after a `kill -9`.

It has two steps. The first gathers everything in the folder DATA/backup.staging: files that never change again (full
log segments, slot files) as hard links, which takes no time and keeps them even if the broker removes them; the other
files as copies. The second creates the target from these files, by links where the target is on the same disk.

Until everything is on disk, the target's file `format` says that the backup is unfinished, and no broker opens it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from broker.store.files import Files
from broker.store.segment import segment_path

REMOVED: Final = "%removed-"
STAGING: Final = "backup.staging"
BLOCK_BYTES: Final = 1024 * 1024
UNFINISHED: Final = b"slotmq backup, unfinished\n"
# These files belong to the running broker, or to a single run.
_OWN: Final = frozenset(("lock", "control.sock", "format", "incarnation", "reserve", "running"))
_UNFINISHED_NAME: Final = ".unfinished"


class BackupStopped(Exception):
    """The broker is stopping, or the backup was cancelled."""


class Backup:
    """One backup. Methods except `stop` are *blocking*, called by one thread at a time, and raise StoreFailed and
    BackupStopped.

    Shapes: `gather_*` fill the staging folder, `copy` creates the target from it, `clean` removes it. `stop` ends the
        backup soon, and may be called from any thread.
    """

    def __init__(self, files: Files, folder: Path, target: Path) -> None:
        self._files = files
        self._folder = folder
        self._staging = folder / STAGING
        self._target = target
        self._stopped = False

    def stop(self) -> None:
        """End the backup: the current step raises BackupStopped."""
        self._stopped = True

    def begin(self) -> None:
        """Create the target, marked as unfinished, and the staging folder."""
        new = [folder for folder in (self._target, *self._target.parents) if not self._files.exists(folder)]
        self._files.make_folder(self._target)
        for folder in new:
            self._files.sync_folder(folder.parent)
        self._files.replace(self._target / "format", [UNFINISHED]).close()
        self.clean()
        self._files.make_folder(self._staging)

    def gather_settings(self) -> None:
        """Gather the small files of the data folder itself, such as the definitions."""
        self._gather_files(self._folder, self._staging)

    def gather_store(self, name: str, segments: Mapping[int, int]) -> None:
        """Gather the store of a vhost. Call it while no checkpoint is taken and no segment is removed.

        Shapes: `name` is that of the vhost's folder; `segments` maps each segment of the log to its bytes on disk.
        """
        source, target = self._folder / "vhosts" / name, self._staging / "vhosts" / name
        self._files.make_folder(target / "log")
        last = max(segments, default=0)
        for number, size in segments.items():
            path, copy = segment_path(source / "log", number), segment_path(target / "log", number)
            if number == last:  # the log still appends to it
                self._copy(path, copy, size)
            else:
                self._link_or_copy(path, copy)
        self._files.make_folder(target / "queues")
        for entry in self._files.list(source / "queues"):  # written in place; recovery rebuilds a torn one
            path = source / "queues" / entry
            if self._files.exists(path):  # the broker may remove the log of a transient queue at any time
                self._copy(path, target / "queues" / entry)
        self._gather_files(source, target)

    def gather_others(self, known: Collection[str]) -> None:
        """Gather the vhosts that are not open. Shapes: `known` contains the folder names of the open ones."""
        source = self._folder / "vhosts"
        for entry in self._files.list(source):
            if entry not in known and not entry.startswith(REMOVED):
                self._gather_tree(source / entry, self._staging / "vhosts" / entry)

    def gather_slots(self, paths: Iterable[Path], log_lines: Iterable[bytes]) -> None:
        """Gather the slot files and write a log of their seals. Call it while no slot file is sealed or removed."""
        target = self._staging / "slots"
        self._files.make_folder(target)
        for path in paths:
            self._link_or_copy(path, target / path.name)
        self._files.replace(target / "seals.log", log_lines, sync=False).close()

    def copy(self, progress: Callable[[int, int], None]) -> tuple[int, int]:
        """Fill the target from the gathered files and sync it; return the number of these files and their bytes.

        `progress` is called with the bytes done and their total, whenever the percentage has changed.
        """
        paths, folders = self._staged()
        total_bytes = sum(self._files.size(path) for path in paths)
        done_bytes = percent = 0
        made = [self._target / folder.relative_to(self._staging) for folder in folders]
        for folder in made:
            self._files.make_folder(folder)
        for path in paths:
            copy = self._target / path.relative_to(self._staging)
            self._link_or_copy(path, copy)
            with self._files.open(copy, write=True) as file:
                file.sync()
            done_bytes += self._files.size(copy)
            if done_bytes * 100 // (total_bytes or 1) != percent:
                percent = done_bytes * 100 // (total_bytes or 1)
                progress(done_bytes, total_bytes)
        for folder in made:
            self._files.sync_folder(folder)
        self._files.replace(self._target / "format", [self._files.read(self._folder / "format")]).close()
        return len(paths), total_bytes

    def clean(self) -> None:
        """Remove the staging folder, if it exists."""
        if self._files.exists(self._staging):
            self._files.remove_tree(self._staging)

    def _staged(self) -> tuple[list[Path], list[Path]]:
        """Return the gathered files and folders, each folder before its content."""
        paths: list[Path] = []
        folders = [self._staging]
        for folder in folders:
            for entry in self._files.list(folder):
                (folders if self._files.is_folder(folder / entry) else paths).append(folder / entry)
        return paths, folders

    def _gather_files(self, source: Path, target: Path) -> None:
        for entry in self._files.list(source):
            if entry in _OWN or entry.endswith(_UNFINISHED_NAME) or self._files.is_folder(source / entry):
                continue
            self._copy(source / entry, target / entry)

    def _gather_tree(self, source: Path, target: Path) -> None:
        """Copy a folder and its contents, without links: a broker started on the copy must not change the original."""
        self._files.make_folder(target)
        for entry in self._files.list(source):
            gather = self._gather_tree if self._files.is_folder(source / entry) else self._copy
            gather(source / entry, target / entry)

    def _link_or_copy(self, source: Path, target: Path) -> None:
        """Link a file that never changes again to another path, or copy it where the disk cannot link."""
        self._check()
        if not self._files.link(source, target):
            self._copy(source, target)

    def _copy(self, source: Path, target: Path, size: int | None = None) -> None:
        with self._files.open(source) as read, self._files.open(target, create=True) as written:
            end = read.size() if size is None else size
            for at in range(0, end, BLOCK_BYTES):
                self._check()
                written.write_at(at, read.read_at(at, min(BLOCK_BYTES, end - at)))

    def _check(self) -> None:
        if self._stopped:
            raise BackupStopped
