"""A lake: the Delta tables in which archives store messages, with methods to read and maintain them.

messages, bad               the tables of messages (in the schema of `slotmq`) and of unreadable records
_taps                       the taps of each store in the lake
_archives/<cursor>.json     the taps of an archive and where it began; its position is in the log of `messages`
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, functions

from broker.pipeline.faults import LakeRefused, SourceRefused
from broker.pipeline.lake.place import Disk, LakePlace, ObjectDisk
from broker.pipeline.lake.slot_copy import Branch
from broker.pipeline.lake.table import LakeBatch, LakeFile, LakeTable
from broker.pipeline.options import Instant, instant_ms, now_ms
from broker.pipeline.source.schema import ARROW_SCHEMA, BAD_SCHEMA, COLUMNS, ddl_of
from broker.pipeline.source.seal_stream import StreamOffset
from broker.pipeline.spark.tasks import frame_of, session_setting, tasks_at_once

TAPS: Final = "_taps"
ARCHIVES: Final = "_archives"
NOTE_FORMAT: Final = 1
LAKE_NAMES: Final = frozenset({"messages", "bad", TAPS, ARCHIVES, "_jobs", "unroutable"})
LISTING_THRESHOLD: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
GLOB: Final = re.compile(r"[][{}*?\\]")  # Spark treats a path with these characters as a pattern
LISTED_BY_DRIVER: Final = 10_000  # up to this many files are listed by the driver, because a Spark job costs more
OBJECT_ROWS: Final = 10_000  # the rows of a batch that a task reads from a bucket
OBJECT_TASKS: Final = 4  # the tasks of a read, for each task that can run at the same time


@dataclass(frozen=True, slots=True)
class ArchiveNote:
    """The description of an archive.

    Shapes: `query` is the archive's name in the log; `taps` are names or globs, or () for all; `start` is where
        the archive began, and `skip` maps vhost and tap to the last seal that the lake had at that time.
    """

    query: str
    vhost: str | None
    taps: tuple[str, ...]
    skip: Mapping[str, Mapping[str, int]]
    start: StreamOffset

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Parse a note. Raises: KeyError, TypeError, ValueError, AttributeError, OverflowError, SourceRefused."""
        names = {name: found[name] for name in cls.__slots__}
        skip = {vhost: {tap: int(seal) for tap, seal in taps.items()} for vhost, taps in found["skip"].items()}
        start = StreamOffset.from_json(found["start"])
        return cls(**{**names, "taps": tuple(found["taps"]), "skip": skip, "start": start})

    def to_json(self) -> dict[str, Any]:
        return {"format": NOTE_FORMAT, **asdict(self), "start": self.start.to_json()}


class Lake:
    """A lake; `create` makes a new one if there is none.

    Shapes: `version` is a number or a time of the table `messages`, or None for the newest version.
    Raises: LakeRefused if the lake or the version does not exist, or the lake cannot be created.
    """

    def __init__(
        self,
        place: str | Path | LakePlace,
        *,
        create: bool = False,
        version: int | str | datetime | None = None,
        disk: Disk | None = None,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self.place = LakePlace.of(place)
        self.disk = disk or self.place.disk()
        self._clock_ms = clock_ms
        self._known_branches: dict[str, Branch] = {}  # by the name of their file
        self.message_table = LakeTable(self.place, "messages", ARROW_SCHEMA, self.disk, version=version)
        self.bad_table = LakeTable(self.place, "bad", BAD_SCHEMA, self.disk)
        if create:
            self._create()
        elif not self.message_table.exists:
            self._refuse("for it has no table of messages")
        elif version is not None:
            self.message_table.load()  # raises LakeRefused if the version does not exist

    def _create(self) -> None:
        try:
            names = self.disk.list(self.place.root)
        except NotADirectoryError:
            raise LakeRefused(f"{self.place} is not a lake but a file") from None
        if self.place.folder is not None and set(names) - LAKE_NAMES:
            self._refuse("and not empty")
        for table in (self.bad_table, self.message_table):
            table.log.repair()
            table.create()

    def _refuse(self, why: str) -> None:
        raise LakeRefused(f"{self.place} is not a lake, {why}")

    # ---- writing

    def commit(self, batch: LakeBatch) -> bool:
        """Add a batch whose files are on disk, or discard it if the lake has it already; return whether it was added.

        Bad records are committed first, so that a batch in the table of messages is complete.
        Raises: LakeRefused, TapTaken, after discarding the batch.
        """
        copied, made = batch.copied, False
        try:
            if not self.message_table.holds(batch):
                self.note_taps(copied.seals)
            bad_batch = replace(batch, copied=replace(copied, seals={}))
            if copied.bad_files and not self.bad_table.commit(bad_batch, copied.bad_files):
                self.bad_table.discard(copied.bad_files)
            made = self.message_table.commit(batch, copied.files)
        finally:
            if not made:
                self.discard(batch)
        return made

    def discard(self, batch: LakeBatch) -> None:
        """Remove those files of a batch that no log names."""
        self.message_table.discard(batch.copied.files)
        self.bad_table.discard(batch.copied.bad_files)

    def note_taps(self, branches: Iterable[Branch]) -> None:
        """Record the taps of the next commit, because the Delta package cannot list the taps of a table."""
        for branch in branches:
            name = f"{branch[0]}-{hashlib.sha256(json.dumps(branch).encode()).hexdigest()[:16]}.json"
            if name not in self.disk.list(self.place.root / TAPS):
                self._write(TAPS, name, branch)

    def _write(self, folder: str, name: str, value: Any) -> None:
        """Write JSON to a file atomically; the file is on disk when this returns."""
        self.disk.write_whole(self.place.root / folder / name, json.dumps(value, ensure_ascii=False).encode())

    def _branches(self, store: str) -> list[Branch]:
        """Return the branches of a store in the lake. Cost: each branch's file is read once: it never changes."""
        folder, known = self.place.root / TAPS, self._known_branches
        names = [name for name in self.disk.list(folder) if name.startswith(f"{store}-")]
        for name in names:
            if name not in known:
                known[name] = tuple(json.loads(self.disk.read(folder / name)))
        return [known[name] for name in names]

    def archived(self, store: str) -> dict[tuple[str, str], dict[str, int]]:
        """Return the last seals of a store in the lake. Shapes: {(vhost, tap): {incarnation: seal}}."""
        found: dict[tuple[str, str], dict[str, int]] = {}
        seals = self.message_table.last_seals(self._branches(store))
        for (_, incarnation, vhost, tap), seal in seals.items():
            found.setdefault((vhost, tap), {})[incarnation] = seal
        return found

    # ---- archives

    def note(self, cursor: str) -> ArchiveNote | None:
        """Return the note of an archive, or None if there is none. Raises: LakeRefused for an unreadable note."""
        path = self.place.root / ARCHIVES / f"{cursor}.json"
        if path.name not in self.disk.list(path.parent):
            return None
        try:
            found = json.loads(self.disk.read(path))
            if found["format"] > NOTE_FORMAT:
                raise LakeRefused(f"{path} is of format {found['format']}, this version reads up to {NOTE_FORMAT}")
            return ArchiveNote.from_json(found)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, SourceRefused) as error:
            raise LakeRefused(f"{path} cannot be read: {error!r}") from error

    def write_note(self, cursor: str, note: ArchiveNote) -> ArchiveNote:
        self._write(ARCHIVES, f"{cursor}.json", note.to_json())
        return note

    def position(self, note: ArchiveNote) -> StreamOffset | None:
        """Return the end of an archive's last batch, or None before the first batch."""
        return self._last_offset(self.message_table, note)

    def interrupted(self, note: ArchiveNote, at: StreamOffset) -> StreamOffset | None:
        """Return the end of the batch after `at` if the lake has only its bad records, else None."""
        bad = self._last_offset(self.bad_table, note)
        return bad if bad is not None and bad.seal > at.seal else None

    def _last_offset(self, table: LakeTable, note: ArchiveNote) -> StreamOffset | None:
        found = table.last_passed(note.query, {branch[1] for branch in self._branches(note.start.store)})
        return None if found is None else replace(note.start, seal=found[0], incarnation=found[1])

    # ---- reading

    def files(self, since: Instant = None, until: Instant = None) -> list[LakeFile]:
        """Return the files that may have messages with since <= ts < until."""
        return self.message_table.files(*self._bounds(since, until))

    def messages(
        self, spark: SparkSession, since: Instant = None, until: Instant = None, columns: Sequence[str] | None = None
    ) -> DataFrame:
        """Return a frame of the messages with since <= ts < until; columns that a file lacks are null.

        Later commits do not change the frame. Raises: LakeRefused. Cost: files without such times are not opened.
        """
        first_ms, end_ms = self._bounds(since, until)
        wanted = list(dict.fromkeys([*(columns or COLUMNS), "ts"]))
        files = self.message_table.files(first_ms, end_ms)
        frame = self._frame(spark, self.message_table, files, ddl_of(ARROW_SCHEMA, wanted))
        if first_ms is not None:
            frame = frame.where(functions.col("ts") >= functions.lit(_moment(first_ms)))
        if end_ms is not None:
            frame = frame.where(functions.col("ts") < functions.lit(_moment(end_ms)))
        return frame if columns is None else frame.select(*columns)

    def bad(self, spark: SparkSession) -> DataFrame:
        return self._frame(spark, self.bad_table, self.bad_table.files(), ddl_of(BAD_SCHEMA))

    def _frame(self, spark: SparkSession, table: LakeTable, files: Sequence[LakeFile], ddl: str) -> DataFrame:
        if not files:
            return spark.createDataFrame([], ddl)
        paths = [str(table.folder / file.path) for file in files]
        if self.place.folder is None:  # this Spark has no file system for buckets
            place, count = self.place, min(len(paths), OBJECT_TASKS * tasks_at_once(spark))
            shares = [paths[at::count] for at in range(count)]
            return frame_of(spark, lambda share: _object_rows(place, share, ddl), shares, ddl)
        with session_setting(spark, LISTING_THRESHOLD, str(LISTED_BY_DRIVER)):
            return spark.read.schema(ddl).parquet(*(GLOB.sub(r"\\\g<0>", path) for path in paths))

    def _bounds(self, since: Instant, until: Instant) -> tuple[int | None, int | None]:
        now = self._clock_ms()
        return instant_ms(since, now), instant_ms(until, now)

    # ---- maintenance

    def compact(self, target_bytes: int, day: str | None = None) -> Mapping[str, Any]:
        """Compact the small files of all days or of one day, and return the figures of the table of messages."""
        self.bad_table.compact(target_bytes, day)
        return self.message_table.compact(target_bytes, day)

    def vacuum(self, keep_hours: int) -> int:
        """Remove files that were replaced more than `keep_hours` ago, and abandoned files; return how many."""
        return self.message_table.vacuum(keep_hours) + self.bad_table.vacuum(keep_hours)


def _object_rows(place: LakePlace, paths: Sequence[str], ddl: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of Parquet files in a bucket, in a task; the columns that a file lacks are null."""
    schema = pa.unify_schemas([ARROW_SCHEMA, BAD_SCHEMA])
    wanted = pa.schema([schema.field(column.split("`")[1]) for column in ddl.split(", ")])
    files = ObjectDisk(place.uri, place.options).files
    for path in paths:
        with files.open_input_file(path) as file:
            found = pq.ParquetFile(file)
            present = set(wanted.names) & set(found.schema_arrow.names)
            for batch in found.iter_batches(OBJECT_ROWS, columns=sorted(present)):
                columns = [
                    batch.column(field.name).cast(field.type)
                    if field.name in present
                    else pa.nulls(batch.num_rows, field.type)
                    for field in wanted
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
