"""One table of a lake: a folder with Parquet files by date, and the log that says which of them count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.pipeline.faults import LakeRefused
from broker.pipeline.lake.disk import Disk
from broker.pipeline.lake.entry import Entry, LakeFile
from broker.pipeline.lake.manifest import DATA, DAY_MS, WRITING, Manifest, now_ms

__all__ = ["KEEP_REMOVED_MS", "Table"]

LOG: Final = "_log"
ORPHAN_MS: Final = DAY_MS  # a writer that still works is never so old
KEEP_REMOVED_MS: Final = 7 * DAY_MS


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep removed."""

    orphans: int
    removed: int


class Table:
    """The files and the log of one table."""

    def __init__(self, folder: Path, disk: Disk, *, clock_ms: Callable[[], int] = now_ms) -> None:
        self.folder = folder
        self.data = folder / DATA
        self._disk = disk
        self._clock_ms = clock_ms
        self.manifest = Manifest(folder / LOG, disk, clock_ms=clock_ms)

    def commit(self, entry: Entry) -> bool:
        """Add a batch whose files are written; tells whether it is new. The files of one that is not are removed.

        Raises: LakeRefused, and then too the files are removed.
        """
        for folder in sorted({(self.data / file.path).parent for file in entry.add}):
            self._disk.sync_folder(folder)
        try:
            made = self.manifest.commit(entry)
        except LakeRefused:
            self.discard(entry.add)
            raise
        if made:
            self.manifest.tidy()
        else:
            self.discard(entry.add)
        return made

    def discard(self, files: Iterable[LakeFile]) -> None:
        """Remove those of the files that no entry has."""
        held = self.manifest.state().files
        for file in files:
            if file.path not in held:
                self._disk.remove(self.data / file.path)

    def files(self, first_ms: int | None = None, end_ms: int | None = None) -> list[LakeFile]:
        """Return the files that may have rows with first_ms <= ts < end_ms, in the order of their dates and times."""
        found = [
            file
            for file in self.manifest.state().files.values()
            if (first_ms is None or file.last_ts_ms >= first_ms) and (end_ms is None or file.first_ts_ms < end_ms)
        ]
        return sorted(found, key=lambda file: (file.date, file.first_ts_ms, file.path))

    def sweep(
        self,
        *,
        own: str | None = None,
        orphan_ms: int = ORPHAN_MS,
        keep_removed_ms: int | None = KEEP_REMOVED_MS,
    ) -> Swept:
        """Remove the files of no entry when they are old enough, and those that compaction replaced.

        Shapes: own is what the names of a writer's files begin with; who calls knows that the writer is gone, so
            age does not count for them. With keep_removed_ms None what was replaced stays: whoever replaced it knows
            for how long.
        """
        now = self._clock_ms()
        found = [
            f"{date}/{name}" for date in self._disk.list(self.data) for name in self._disk.list(self._folder_of(date))
        ]
        state = self.manifest.state()  # after the listing: what was committed since is known
        orphans = removed = 0
        for path in found:
            if path in state.files:
                continue
            removed_ms = state.removed.get(path)
            if removed_ms is not None:
                if keep_removed_ms is not None and now - removed_ms >= keep_removed_ms:
                    removed += self._disk.remove(self.data / path)
                continue
            mine = own is not None and path.rpartition("/")[2].startswith(own)
            if mine or self._old(self.data / path, now - orphan_ms):
                orphans += self._disk.remove(self.data / path)
        for name in self._disk.list(self.manifest.folder):
            if name.startswith(WRITING) and self._old(self.manifest.folder / name, now - orphan_ms):
                self._disk.remove(self.manifest.folder / name)
        return Swept(orphans, removed)

    def _folder_of(self, date: str) -> Path:
        return self.data / date

    def _old(self, path: Path, limit_ms: int) -> bool:
        changed_ms = self._disk.changed_ms(path)
        return changed_ms is not None and changed_ms <= limit_ms
