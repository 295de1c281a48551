"""The position of an archive, as a checkpoint of Spark, with a note beside it that describes the archive.

    archive.json     the name of the archive in the lake's log, its store and taps, and where it began
    offsets/<n>      the plan of batch n: line 3 is the offset of the source after the batch
    commits/<n>      batch n is in the lake

A slot may be released when commits/<n> of a later batch exists and is on disk: without it the batch is repeated and
needs its slots. This module syncs what it writes; Spark, which wrote older checkpoints, syncs nothing.
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
NOTE_FORMAT: Final = 2  # format 1 is also read; its note names no incarnation
SOURCE_LINE: Final = 2
KEPT: Final = 100  # like Spark


@dataclass(frozen=True, slots=True)
class ArchiveNote:
    """The description of an archive.

    Shapes: `taps` are names or globs, none for all; the archive began after the seal `start`; `skip` holds by vhost and
        tap the last seal that was in the lake then; `incarnation` is the start of the broker that wrote the last of
        these seals, None if an earlier version did not record it.
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
        """The last of the seals after which the archive began."""
        return max([self.start, *(seal for taps in self.skip.values() for seal in taps.values())])


@dataclass(frozen=True, slots=True)
class Committed:
    """The last batch in the lake, and its end."""

    batch: int
    offset: StreamOffset


class ArchiveCheckpoint:
    """The folder of one archive."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.folder = folder
        self._disk = disk
        self._synced = -1

    def note(self) -> ArchiveNote | None:
        """Return the note of the checkpoint, None when it is new. Raises: LakeRefused for an unreadable note."""
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
        """Write the note of a new archive; it is on disk before the stream makes a batch."""
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
        """Return the last batch with a commit file, None before the first; the file is synced before this returns.

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
        """Return the end of the last planned batch, None if there is none or Spark cannot read it."""
        batches = self._numbers("offsets")
        try:
            return self._offset(self.folder / "offsets" / str(batches[-1])) if batches else None
        except (OSError, ValueError, IndexError, AttributeError, SourceRefused):
            return None

    def planned_batch(self, batch: int) -> dict[str, Any] | None:
        """Return the end of a planned batch, committed or not; None if it was not planned."""
        path = self.folder / "offsets" / str(batch)
        return self._offset(path).to_json() if str(batch) in self._disk.list(path.parent) else None

    def plan(self, batch: int, end: StreamOffset) -> None:
        """Record the end of a batch; it is on disk when this returns."""
        made_ms = time.time_ns() // 1_000_000
        head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": made_ms, "conf": {}})
        self._write("offsets", batch, f"v1\n{head}\n{json.dumps(end.to_json())}")

    def commit(self, batch: int) -> None:
        """Record that the lake has a batch, on disk when this returns; keep the records of the last hundred batches."""
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
        """Return which of Spark's files a power loss damaged, empty if they are whole. Spark syncs none of them.

        Shapes: `held` is the last batch in the lake, -1 for none.
        """
        offsets, commits = self._numbers("offsets"), self._numbers("commits")
        if held > max(offsets, default=-1):
            return f"offsets/{held} is lost"
        for batch in {*offsets[-1:], *commits[-1:]}:
            try:
                self._offset(self.folder / "offsets" / str(batch))
            except SourceRefused:
                continue  # whole, but of a later version or another source: `committed` reports that
            except (OSError, ValueError, IndexError, AttributeError):
                return f"offsets/{batch} cannot be read"
        for path in [self.folder / "commits" / str(batch) for batch in commits[-1:]]:
            if not self._disk.read(path).strip():
                return f"commits/{path.name} is empty"
        return ""

    def set_aside(self) -> Path:
        """Rename the folder and return its new path: the archive starts anew beside it."""
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
