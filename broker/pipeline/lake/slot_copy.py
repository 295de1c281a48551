"""Copy slots to Parquet files within a task, one file per day, and report the files.

Message bytes pass from the slot file through Arrow into Parquet, not through Spark. The rows of a queue are adjacent
and in order, so that readers can skip row groups by their minimum and maximum. Only columns that queries often compare
have statistics.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from broker.pipeline.faults import SlotDamaged, without_worker_trace
from broker.pipeline.lake.place import Disk, LakePlace
from broker.pipeline.source.catalog import open_catalog, open_handle
from broker.pipeline.source.message_run import batches, decode_groups
from broker.pipeline.source.schema import ARROW_SCHEMA, BAD_SCHEMA
from broker.pipeline.source.slot_handle import SlotHandle
from broker.pipeline.source.slot_rows import SlotRows, joined_rows
from broker.slot_files.slot_file import BadSlotFile
from broker.slot_files.slot_view import SlotView

ROW_GROUP_ROWS: Final = 1 << 17
ROW_GROUP_BYTES: Final = 32 << 20  # limits the memory for a row group of large bodies
CODEC: Final = "zstd"
CODEC_LEVEL: Final = 1
DAY_US: Final = 86_400_000_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

DICTIONARY_COLUMNS: Final = frozenset(
    "vhost queue exchange routing_key content_type content_encoding reply_to expiration type user_id app_id headers "
    "properties_raw priority delivery_mode reason store incarnation query".split()
)
DELTA_COLUMNS: Final = frozenset("slot seal offset ts app_ts".split())
COMPARED_COLUMNS: Final = ("vhost", "queue", "slot", "seal", "offset", "ts", "exchange", "routing_key")


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file on disk that can be added to the log of a table.

    Shapes: `path` is relative to the table's folder; `date` is the date of its rows, such as 2026-11-20; `stats` are
        Delta's statistics as JSON.
    """

    path: str
    date: str
    bytes: int
    stats: str


class ParquetFile:
    """A Parquet file to which record batches of one schema are appended. Invariant: after `finish` it is on disk."""

    def __init__(self, disk: Disk, table: Path, path: str, schema: pa.Schema) -> None:
        self._disk = disk
        self._absolute = table / path
        self._path = path
        self._schema = schema
        disk.make_folder(self._absolute.parent)
        self._file = disk.create(self._absolute)
        self._written: list[Any] = []
        names = schema.names
        self._writer = pq.ParquetWriter(
            self._file,
            schema,
            compression=CODEC,
            compression_level=CODEC_LEVEL,
            use_dictionary=[name for name in names if name in DICTIONARY_COLUMNS],
            column_encoding={name: "DELTA_BINARY_PACKED" for name in names if name in DELTA_COLUMNS},
            write_statistics=[name for name in names if name in COMPARED_COLUMNS],
            store_schema=False,
            metadata_collector=self._written,
        )
        self._batches: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        if self._pending_rows >= ROW_GROUP_ROWS or self._pending_bytes >= ROW_GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches, self._schema)
            self._writer.write_table(table, row_group_size=table.num_rows)
        self._batches = []
        self._pending_rows = self._pending_bytes = 0

    def finish(self, date: str) -> NewFile:
        """Write the remaining rows, sync the file, and return its description for the log."""
        self._write()
        self._writer.close()
        self._disk.sync(self._file)
        size = self._file.tell()
        self._file.close()
        self._disk.sync_folder(self._absolute.parent)
        return NewFile(self._path, date, size, stats_of(self._written[0]))

    def close(self) -> None:
        """Close a file that will be removed, even on a full disk; a second call does nothing."""
        if not self._file.closed:
            for each in (self._writer, self._file):
                with suppress(OSError, RuntimeError, pa.ArrowException):
                    each.close()

    def remove(self) -> None:
        self._disk.remove(self._absolute)


def stats_of(metadata: Any) -> str:
    """Return the statistics of a Parquet file, with the bounds of the compared columns, as JSON for Delta's log."""
    minimum: dict[str, Any] = {}
    maximum: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    for at, name in enumerate(metadata.schema.names):
        found = [group.column(at).statistics for group in groups] if name in COMPARED_COLUMNS else []
        if not found or not all(each is not None and each.has_null_count for each in found):
            continue
        nulls[name] = sum(each.null_count for each in found)
        bounds = [each for each in found if each.has_min_max]
        if bounds:
            minimum[name] = _plain(min(each.min for each in bounds))
            maximum[name] = _plain(max(each.max for each in bounds))
    stats = {"numRecords": metadata.num_rows, "minValues": minimum, "maxValues": maximum, "nullCount": nulls}
    return json.dumps(stats, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z") if isinstance(value, datetime) else value


class DayFiles:
    """New files in a table's folder, one for each day; an exception inside `with` removes them.

    Shapes: batches have a column `ts`, from which the day is taken.
    """

    def __init__(self, disk: Disk, table: Path, writer: str, schema: pa.Schema) -> None:
        self._disk = disk
        self._table = table
        self._writer = writer
        self._schema = schema
        self._files: dict[int, ParquetFile] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for file in self._files.values():
                file.close()
                file.remove()

    def add(self, batch: pa.RecordBatch) -> None:
        for day, part in _by_day(batch):
            file = self._files.get(day)
            if file is None:
                path = f"date={_iso_date(day)}/{self._writer}-{uuid.uuid4().hex}.parquet"
                file = self._files[day] = ParquetFile(self._disk, self._table, path, self._schema)
            file.add(part)

    def finish(self) -> tuple[NewFile, ...]:
        """Write the remaining rows, and return the files, which are then on disk."""
        return tuple(file.finish(_iso_date(day)) for day, file in sorted(self._files.items()))


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    times = batch.column("ts").cast(pa.int64())
    found = pc.min_max(times)
    first, last = (found[name].as_py() // DAY_US for name in ("min", "max"))
    if first == last:
        yield first, batch
        return
    days: Any = times.to_numpy() // DAY_US
    for day in np.unique(days).tolist():
        yield day, batch.filter(pa.array(days == day))


def _iso_date(day: int) -> str:
    return (EPOCH + timedelta(days=day)).date().isoformat()


Branch = tuple[str, str, str, str]  # store, incarnation, vhost and tap
Slots = Sequence[SlotHandle]


@dataclass(slots=True)
class Copied:
    """The report of one or more tasks for a commit. Shapes: `seals` maps each branch to its first and last seal."""

    files: tuple[NewFile, ...] = ()
    bad_files: tuple[NewFile, ...] = ()
    seals: dict[Branch, tuple[int, int]] = field(default_factory=dict)
    slots: int = 0
    rows: int = 0
    bad: int = 0
    slot_bytes: int = 0

    def __add__(self, other: Copied) -> Copied:
        both = Copied(self.files + other.files, self.bad_files + other.bad_files, dict(self.seals))
        for branch, seals in other.seals.items():
            both.note_seals(branch, *seals)
        for name in ("slots", "rows", "bad", "slot_bytes"):
            setattr(both, name, getattr(self, name) + getattr(other, name))
        return both

    def note_seals(self, branch: Branch, first: int, last: int) -> None:
        """Record that a branch has the seals from `first` to `last`."""
        known = self.seals.get(branch, (first, last))
        self.seals[branch] = (min(known[0], first), max(known[1], last))

    def figures(self) -> dict[str, int]:
        lake_bytes = sum(file.bytes for file in self.files)
        return {"slots": self.slots, "rows": self.rows, "bad": self.bad, "slot_bytes": self.slot_bytes,
                "files": len(self.files), "lake_bytes": lake_bytes}  # fmt: skip


@dataclass(frozen=True)
class LakeTarget:
    """The lake into which tasks copy slots. It is pickled and sent to each task.

    Shapes: either `path`, the absolute path of the broker's data folder, or `url` is set; `skip` maps vhost and tap to
        the last seal that is not copied; tests set `disk`.
    """

    lake: LakePlace
    query: str
    path: str | None = None
    url: str | None = None
    skip: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    disk: Disk | None = None

    def copy(self, slots: Slots) -> Copied:
        """Copy slots, within a task, and return the report for the commit. Raises: PipelineFault."""
        with without_worker_trace():
            wanted = [slot for slot in slots if slot.seal > self.skip.get(slot.vhost, {}).get(slot.queue, 0)]
            if not wanted:
                return Copied()
            disk = self.disk or self.lake.disk()
            with (
                closing(open_catalog(self.path, self.url)) as catalog,
                SlotCopy(disk, self.lake.root, self.query, partial(open_handle, catalog)) as copy,
            ):
                copy.copy(sorted(wanted, key=lambda one: (one.vhost, one.queue, one.first)))
                return copy.finish()


class SlotCopy(ExitStack):
    """Copy slots into new files of a lake, which no log names yet; an exception inside `with` removes the files."""

    def __init__(self, disk: Disk, lake: Path, query: str, open_slot: Callable[[SlotHandle], SlotView]) -> None:
        super().__init__()
        self._query = query
        self._open = open_slot
        self._messages = self.enter_context(DayFiles(disk, lake / "messages", query, ARROW_SCHEMA))
        self._bad = self.enter_context(DayFiles(disk, lake / "bad", query, BAD_SCHEMA))
        self._done = Copied()

    def copy(self, slots: Iterable[SlotHandle]) -> None:
        """Copy the readable rows of slots, and record all others as bad. Raises: SlotMissing, SourceRefused.

        Cost: small slots are decoded together, because each decoding costs a millisecond and 30 KB.
        """
        for group in decode_groups(slots):
            opened = [self._opened(slot) for slot in group]
            rows = joined_rows([view for view in opened if isinstance(view, SlotView)])
            if rows is not None and len(rows.metas) == len(group):
                self._add(rows)
                continue
            for slot, view in zip(group, opened, strict=True):
                if isinstance(view, SlotView):
                    self._copy(slot, view)
                else:
                    self._record_bad(slot, str(view))

    def _opened(self, slot: SlotHandle) -> SlotView | BadSlotFile | SlotDamaged:
        """Count a slot, and return its view, or the error if it is damaged."""
        done = self._done
        done.note_seals((slot.store, slot.incarnation or "", slot.vhost, slot.queue), slot.seal, slot.seal)
        done.slots += 1
        done.slot_bytes += slot.bytes
        try:
            return self._open(slot)
        except (BadSlotFile, SlotDamaged) as error:
            return error

    def _copy(self, slot: SlotHandle, view: SlotView) -> None:
        try:
            rows = SlotRows(view)
        except BadSlotFile as error:
            self._record_bad(slot, str(error))
            return
        bad = rows.bad()
        for one in bad:
            place = {
                "row": one.position,
                "offset": int(rows.ids[one.position]),
                "ts": int(rows.ts_ms[one.position]) * 1000,
            }
            self._record_bad(slot, one.reason, **place, rows=1, raw=one.raw)
        self._add(rows, np.delete(np.arange(len(rows.ids)), [one.position for one in bad]) if bad else None)

    def _add(self, rows: SlotRows, good: Any = None) -> None:
        for batch in batches(rows, rows=good):
            self._done.rows += batch.num_rows
            self._messages.add(batch)
            rows.page_out()

    def _record_bad(self, slot: SlotHandle, reason: str, **row: Any) -> None:
        """Record an unreadable row, described by the columns in `row`, or the whole slot if `row` is empty."""
        whole = {"offset": slot.first, "rows": slot.count, "ts": (slot.first_ts_ms or 0) * 1000}
        of_slot = {"store": slot.store, "vhost": slot.vhost, "queue": slot.queue, "slot": slot.first, "seal": slot.seal}
        found = {"query": self._query, "incarnation": slot.incarnation or None, "reason": reason}
        record = {**of_slot, **found, **whole, **row}
        self._done.bad += record["rows"]
        self._bad.add(pa.RecordBatch.from_pylist([record], BAD_SCHEMA))

    def finish(self) -> Copied:
        """Write the remaining rows, and return the report. All files are then on disk."""
        return replace(self._done, files=self._messages.finish(), bad_files=self._bad.finish())
