"""Files in memory that fail: the n-th call raises an error, or a power loss drops unsynced changes.

After a power loss (OSDI '14, "All File Systems Are Not Created Equal"), a file has its synced bytes and any subset of
the 512-byte sectors written later, some of them garbage; a folder has its synced entries with any subset of the later
changes. A failed sync marks its pages clean: they remain in the page cache, but no later sync writes them to disk
(PostgreSQL's "fsyncgate").
"""

from __future__ import annotations

import copy
from pathlib import Path
from random import Random
from typing import Final

from broker.store.damage import StoreFailed
from broker.store.files import File
from broker.store.memory_files import FileContent, MemoryFile, MemoryFiles, moved


class PowerLost(Exception):
    """Power was lost at a file call, which had no effect."""


Change = tuple[str, Path, Path, FileContent | None]  # verb, path, new path

SECTOR_BYTES: Final = 512
NO_SPACE: Final = "No space left on device"
TRUNCATE: Final = None


class TornContent(FileContent):
    """A file's bytes as programs see them (`block`) and as they are on disk (`durable`)."""

    def __init__(self) -> None:
        super().__init__()
        self.durable = bytearray()
        self.unsynced: list[tuple[int, bytes | None]] = []  # in order; TRUNCATE cuts the file at the offset

    def sync(self) -> None:
        """Apply the unsynced writes to the disk."""
        for offset, block in self.unsynced:
            apply(self.durable, offset, block)
        self.unsynced.clear()

    def after_loss(self, random: Random, kept: float | None = None) -> bytearray:
        """Return the bytes on disk after a power loss; ``kept`` is the share of unsynced sectors that were written."""
        found = bytearray(self.durable)
        if kept is None:
            kept = random.choice((0.0, 0.3, 0.7, 0.95, 1.0))
        pieces: list[tuple[int, bytes | None]] = []
        for offset, block in self.unsynced:
            if block is TRUNCATE:
                pieces.append((offset, TRUNCATE))
                continue
            at = 0
            while at < len(block):
                stop = at + SECTOR_BYTES - (offset + at) % SECTOR_BYTES
                pieces.append((offset + at, block[at:stop]))
                at = stop
        for offset, block in pieces:
            if random.random() < kept:
                torn = block is not TRUNCATE and random.random() < 0.02
                apply(found, offset, random.randbytes(len(block)) if torn and block is not None else block)
        if len(found) < len(self.block) and random.random() < 0.5:
            found.extend(bytes(random.randint(0, len(self.block) - len(found))))  # only the size is on disk
        return found


def apply(content: bytearray, offset: int, block: bytes | None) -> None:
    """Apply one write or truncation to a file's bytes."""
    if block is TRUNCATE:
        del content[offset:]
        content.extend(bytes(offset - len(content)))
        return
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(block)] = block


class TornFile(MemoryFile):
    """An open file of `FaultyFiles`."""

    def __init__(self, path: Path, content: TornContent, files: FaultyFiles) -> None:
        super().__init__(path, content)
        self._torn = content
        self._files = files

    def read_at(self, offset: int, size: int) -> bytes:
        self._files.called("read", self.path)
        return super().read_at(offset, size)

    def write_at(self, offset: int, block: bytes) -> None:
        try:
            self._files.called("write", self.path)
        except StoreFailed:
            if self._files.partial:  # half was written before the error
                self._write(offset, block[: len(block) // 2])
            raise
        self._write(offset, block)

    def write_zeros(self, offset: int, size: int) -> None:
        try:
            self._files.called("write zeros", self.path)
        except StoreFailed as error:
            if error.reason != NO_SPACE:
                raise
            size //= 2
        self._write(offset, bytes(size))

    def allocate(self, offset: int, size: int) -> None:
        self._files.called("allocate", self.path)
        self._write(offset, bytes(size))

    def truncate(self, size: int) -> None:
        self._files.called("truncate", self.path)
        super().truncate(size)
        self._torn.unsynced.append((size, TRUNCATE))

    def sync(self) -> None:
        try:
            self._files.called("sync", self.path)
        except StoreFailed:
            self._torn.unsynced.clear()
            raise
        self._torn.sync()

    def drop_cache(self) -> None:
        """Drop clean pages, including those marked clean by a failed sync."""
        self._files.called("drop_cache", self.path)
        if not self._torn.unsynced:
            self._torn.block[:] = self._torn.durable

    def _write(self, offset: int, block: bytes) -> None:
        super().write_at(offset, block)
        self._torn.unsynced.append((offset, bytes(block)))


class DiskTree:
    """The folder entries on disk, to which unsynced changes are applied in any order.

    Shapes: changes contain paths as programs see them. Until a folder's move is on disk, its contents are under the old
    path.
    """

    def __init__(self, entries: dict[Path, FileContent], folders: set[Path], changes: list[Change]) -> None:
        self.entries = entries
        self.folders = folders
        self._moves = [(path, target) for verb, path, target, _ in changes if verb == "move"]

    def change(self, change: Change) -> None:
        """Apply one change to the disk."""
        verb, path, target, content = change
        if verb == "move":
            self._moves.remove((path, target))
            self.entries = {moved(place, path, target): content for place, content in self.entries.items()}
            self.folders = {moved(place, path, target) for place in self.folders}
            return
        for old, new in reversed(self._moves):
            path, target = moved(path, new, old), moved(target, new, old)
        if verb == "make":
            self.folders.add(path)
        elif verb == "unmake":
            self.entries = {place: content for place, content in self.entries.items() if not place.is_relative_to(path)}
            self.folders = {place for place in self.folders if not place.is_relative_to(path)}
        elif verb == "remove":
            self.entries.pop(path, None)
        else:
            assert content is not None
            if verb == "rename":
                self.entries.pop(path, None)
            self.entries[target] = content


class FaultyFiles(MemoryFiles):
    """Files in memory that count their calls, fail one of them, and can lose power.

    Shapes: ``fail_at`` is the number of the call that fails, ``lose_at`` the number of the call in which power is
    lost; both count from 1, and 0 means none. ``failed`` names the call that failed. The given folder exists on disk
    from the start.
    """

    def __init__(
        self, fail_at: int = 0, *, reason: str = "Input/output error", partial: bool = False, folder: Path | None = None
    ) -> None:
        super().__init__()
        self.fail_at = fail_at
        self.lose_at = 0
        self.reason = reason
        self.partial = partial
        self.calls = 0
        self.failed = ""
        self.syncs = 0
        self.entries: dict[Path, FileContent] = {}  # the entries of the folders on disk
        self.changes: list[Change] = []  # unsynced changes
        if folder is not None:
            self.folders.update((folder, *folder.parents))
        self.durable_folders = set(self.folders)

    def called(self, verb: str, path: Path) -> None:
        """Count a call, and raise if it is the one that fails or loses power."""
        self.calls += 1
        self.syncs += verb.startswith("sync")
        if self.calls == self.lose_at:
            raise PowerLost
        if self.calls == self.fail_at:
            self.failed = f"{verb} {path.parent.name}/{path.name}"
            raise StoreFailed(path, self.reason)

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        self.called("create" if create else "open to write" if write else "open", path)
        content = self.contents.get(path)
        if content is None:
            super().open(path, write=write, create=create)
            content = self.contents[path]
        assert isinstance(content, TornContent)
        return TornFile(path, content, self)

    def list(self, folder: Path) -> list[str]:
        self.called("list", folder)
        return super().list(folder)

    def make_folder(self, folder: Path) -> None:
        self.called("make", folder)
        missing = [path for path in (folder, *folder.parents) if path not in self.folders]
        super().make_folder(folder)
        self.changes.extend(("make", path, path, None) for path in reversed(missing))

    def rename(self, source: Path, target: Path) -> None:
        self.called("rename", source)
        super().rename(source, target)
        if target in self.contents:
            self.changes.append(("rename", source, target, self.contents[target]))
            return
        self.changes = [
            (verb, moved(path, source, target), moved(to, source, target), content)
            for verb, path, to, content in self.changes
        ]
        self.changes.append(("move", source, target, None))

    def link(self, source: Path, target: Path) -> bool:
        self.called("link", target)
        linked = super().link(source, target)
        self.changes.append(("create", target, target, self.contents[target]))
        return linked

    def remove(self, path: Path) -> None:
        self.called("remove", path)
        if path in self.contents:
            super().remove(path)
            self.changes.append(("remove", path, path, None))

    def remove_folder(self, folder: Path) -> None:
        self.called("remove_folder", folder)
        super().remove_folder(folder)
        self.changes.append(("unmake", folder, folder, None))

    def sync_folder(self, folder: Path) -> None:
        self.called("sync_folder", folder)
        super().sync_folder(folder)
        tree = DiskTree(self.entries, self.durable_folders, self.changes)
        for change in self.changes:
            if change[1].parent == folder:
                tree.change(change)
        self.entries, self.durable_folders = tree.entries, tree.folders
        self.changes = [change for change in self.changes if change[1].parent != folder]

    def after_loss(self, seed: int, *, kept: float | None = None) -> FaultyFiles:
        """Return the files after a power loss.

        Shapes: ``kept`` is the share of the unsynced changes that survive; by default the seed determines it.
        """
        random = Random(seed)
        tree = DiskTree(dict(self.entries), set(self.durable_folders), self.changes)
        kept_changes = random.choice((0.0, 0.5, 0.9, 1.0)) if kept is None else kept
        for change in self.changes:
            if random.random() < kept_changes:
                tree.change(change)
        after = FaultyFiles()
        after.folders = {folder for folder in tree.folders if tree.folders.issuperset(folder.parents)}
        for path, content in tree.entries.items():
            if path.parent in after.folders:
                assert isinstance(content, TornContent)
                found = TornContent()
                found.block = content.after_loss(random, kept)
                found.durable = bytearray(found.block)
                after.contents[path] = found
        return after._as_on_disk(self)

    def after_kill(self) -> FaultyFiles:
        """Return the files as another process sees them: the page cache survives, buffered bytes do not."""
        after = FaultyFiles()
        after.folders = set(self.folders)
        after.contents = {path: copy.deepcopy(content) for path, content in self.contents.items()}
        copies = {id(content): after.contents[path] for path, content in self.contents.items()}
        for content in after.contents.values():
            content.unlock()
        after.entries = {
            path: copies.get(id(content), copy.deepcopy(content)) for path, content in self.entries.items()
        }
        after.changes = [
            (verb, path, target, None if content is None else copies.get(id(content), content))
            for verb, path, target, content in self.changes
        ]
        after.durable_folders = set(self.durable_folders)
        after._tokens = self._tokens
        return after

    def _as_on_disk(self, before: FaultyFiles) -> FaultyFiles:
        self.entries = dict(self.contents)
        self.durable_folders = set(self.folders)
        self._tokens = before._tokens
        return self

    def _create(self, path: Path) -> FileContent:
        content = self.contents[path] = TornContent()
        self.changes.append(("create", path, path, content))
        return content
