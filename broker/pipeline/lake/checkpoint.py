"""Where an archive stands, as a checkpoint of Spark says it, with a note beside it that says what it archives.

    archive.json     the name of the archive in the lake's log, its store and taps, and where it began
    offsets/<n>      what batch n takes: line 3 is the offset of the source behind it
    commits/<n>      batch n is in the lake

A slot may be released when commits/<n> of a batch behind it exists and is on disk: without it the batch is played
again, and its slots are needed. What this module writes is synced; Spark, which wrote older checkpoints, syncs nothing.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from broker.pipeline.faults import LakeRefused, SourceRefused
from broker.pipeline.lake.disk import Disk
from broker.pipeline.source.stream_offset import StreamOffset
from broker.slot_files.seal_starts import SealStarts

__all__ = ["ArchiveCheckpoint", "ArchiveNote", "Committed"]

NOTE: Final = "archive.json"
NOTE_FORMAT: Final = 2  # of 1, which is read, the note names no incarnation
SOURCE_LINE: Final = 2
KEPT: Final = 100  # as Spark keeps


@dataclass(frozen=True, slots=True)
class ArchiveNote:
    """What an archive is.

    Shapes: `taps` are names or globs, none for all; `start` is the seal behind which it began; `skip` has by vhost and
        tap up to where slots were in the lake then; `incarnation` is the start of the broker that wrote the last of
        these seals, None where an earlier version did not note it.
    """

    query: str
    store: str
    vhost: str | None
    taps: tuple[str, ...]
    start: int
    skip: Mapping[str, Mapping[str, int]]
    incarnation: str | None = None

    @property
    def passed(self) -> int:
        """The last of the seals behind which it began."""
        return max([self.start, *(seal for taps in self.skip.values() for seal in taps.values())])


@dataclass(frozen=True, slots=True)
class Committed:
    """The last batch that is in the lake, and where it ends."""

    batch: int
    offset: StreamOffset


class ArchiveCheckpoint:
    """The folder of one archive."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.folder = folder
        self._disk = disk
        self._synced = -1

    def note(self) -> ArchiveNote | None:
        """Return what the checkpoint is of, None when it is new. Raises: LakeRefused when that cannot be read."""
        path = self.folder / NOTE
        try:
            found = json.loads(self._disk.read(path))
            if found["format"] > NOTE_FORMAT:
                raise LakeRefused(f"{path} is of format {found['format']}, this version reads up to {NOTE_FORMAT}")
            names = {"incarnation": None, **found}
            names = {name: names[name] for name in ArchiveNote.__slots__}
            return ArchiveNote(**{**names, "taps": tuple(names["taps"])})
        except FileNotFoundError:
            if self._disk.list(self.folder / "offsets"):
                raise LakeRefused(
                    f"{self.folder} has a checkpoint without {NOTE}: remove it, or restore that"
                ) from None
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise LakeRefused(f"{path} cannot be read: {error!r}") from error

    def begin(
        self,
        store: str,
        *,
        vhost: str | None,
        taps: Sequence[str],
        start: int,
        skip: Mapping[str, Mapping[str, int]],
        starts: SealStarts,
    ) -> ArchiveNote:
        """Make the note of a new archive, on disk before the stream makes a batch."""
        note = ArchiveNote(uuid.uuid4().hex, store, vhost, tuple(taps), start, skip)
        note = replace(note, incarnation=starts.of(note.passed))
        self._disk.make_folder(self.folder)
        writing = self.folder / f".{NOTE}-{note.query}"
        with self._disk.create(writing) as file:
            file.write(json.dumps({"format": NOTE_FORMAT, **asdict(note)}, ensure_ascii=False).encode())
            self._disk.sync(file)
        self._disk.rename(writing, self.folder / NOTE)
        self._disk.sync_folder(self.folder)
        return note

    def committed(self) -> Committed | None:
        """Return the last batch whose commit Spark noted, None before the first; that note is on disk then.

        Raises: LakeRefused when its offset cannot be read.
        """
        batches = self._numbers("commits")
        if not batches:
            return None
        batch = batches[-1]
        path = self.folder / "offsets" / str(batch)
        try:
            made = Committed(batch, self._offset(path))
        except (OSError, ValueError, IndexError, AttributeError, SourceRefused) as error:
            raise LakeRefused(f"{path} cannot be read: {error!r}") from error
        self._sync(batch)
        return made

    def planned(self) -> StreamOffset | None:
        """Return where the last batch ends that Spark planned, None where there is none, or Spark cannot read it."""
        batches = self._numbers("offsets")
        try:
            return self._offset(self.folder / "offsets" / str(batches[-1])) if batches else None
        except (OSError, ValueError, IndexError, AttributeError, SourceRefused):
            return None

    def planned_batch(self, batch: int) -> dict[str, Any] | None:
        """Return where a batch ends that was planned and may not be committed, None for one that was not planned."""
        path = self.folder / "offsets" / str(batch)
        return self._offset(path).to_json() if str(batch) in self._disk.list(path.parent) else None

    def plan(self, batch: int, end: StreamOffset) -> None:
        """Note where a batch ends; it is on disk then."""
        made_ms = time.time_ns() // 1_000_000
        head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": made_ms, "conf": {}})
        self._write("offsets", batch, f"v1\n{head}\n{json.dumps(end.to_json())}")

    def commit(self, batch: int) -> None:
        """Note that the lake has a batch; it is on disk then. The notes of all but the last hundred go."""
        self._write("commits", batch, 'v1\n{"nextBatchWatermarkMs":0}')
        self._synced = batch
        for name in ("offsets", "commits"):
            for old in self._numbers(name)[:-KEPT]:
                self._disk.remove(self.folder / name / str(old))

    def _write(self, name: str, batch: int, text: str) -> None:
        folder = self.folder / name
        self._disk.make_folder(folder)
        writing = folder / f".{batch}-{uuid.uuid4().hex}"
        with self._disk.create(writing) as file:
            file.write(text.encode())
            self._disk.sync(file)
        self._disk.rename(writing, folder / str(batch))
        self._disk.sync_folder(folder)

    def damage(self, held: int) -> str:
        """Return what of Spark's files a power loss took, empty when all is there. Spark syncs none of them.

        Shapes: `held` is the last batch that the lake has, -1 for none.
        """
        offsets, commits = self._numbers("offsets"), self._numbers("commits")
        if held > max(offsets, default=-1):
            return f"offsets/{held} is lost"
        for batch in {*offsets[-1:], *commits[-1:]}:
            try:
                self._offset(self.folder / "offsets" / str(batch))
            except SourceRefused:
                continue  # whole, and of a later version or of another source: `committed` says so
            except (OSError, ValueError, IndexError, AttributeError):
                return f"offsets/{batch} cannot be read"
        for path in [self.folder / "commits" / str(batch) for batch in commits[-1:]]:
            if not self._disk.read(path).strip():
                return f"commits/{path.name} is empty"
        return ""

    def set_aside(self) -> Path:
        """Give the folder another name, which is returned: the archive begins anew beside it."""
        aside = self.folder.with_name(f"{self.folder.name}.old-{uuid.uuid4().hex[:8]}")
        self._disk.rename(self.folder, aside)
        self._disk.sync_folder(aside.parent)
        return aside

    def _offset(self, path: Path) -> StreamOffset:
        return StreamOffset.from_json(json.loads(self._disk.read(path).decode().split("\n")[SOURCE_LINE]))

    def _numbers(self, name: str) -> list[int]:
        return sorted(int(found) for found in self._disk.list(self.folder / name) if found.isdecimal())

    def _sync(self, batch: int) -> None:
        if batch == self._synced:
            return
        for name in ("offsets", "commits"):
            self._disk.sync_file(self.folder / name / str(batch))
            self._disk.sync_folder(self.folder / name)
        self._synced = batch
