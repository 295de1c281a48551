"""A Delta table of a lake, with two guarantees that the Delta package lacks: one writer per tap, and a durable log.

The log has one transaction per branch (a tap in one run of the broker), whose version is the last seal of the branch in
the table. It also has one per archive and run of the broker, whose version is the last seal that the archive has
passed. The package records transactions without comparing them. So each commit is attempted for exactly one version of
the table; if another writer was first, the table is read and compared again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
from deltalake import ColumnProperties, CommitProperties, DeltaTable, PostCommitHookProperties, Schema, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, Transaction

from broker.pipeline.faults import LakeRefused, TapTaken
from broker.pipeline.lake.delta_log import DeltaLog
from broker.pipeline.lake.place import Disk, LakePlace
from broker.pipeline.lake.slot_copy import COMPARED_COLUMNS, Branch, Copied, NewFile
from broker.pipeline.options import now_ms

DATE: Final = "date"
CHECKPOINT_EVERY: Final = 100
ATTEMPTS: Final = 100
ORPHAN_HOURS: Final = 24  # a running writer adds its files to the log sooner
CAUSE: Final = "\N{DOWNWARDS ARROW WITH TIP RIGHTWARDS}"
ONE_WRITER: Final = (
    "only one archive may write a tap into a lake; end the other one, then --take-over continues after its slots"
)
COLOR: Final = re.compile(r"\x1b\[\d*m")
SETTINGS: Final = {
    "delta.dataSkippingStatsColumns": ",".join(COMPARED_COLUMNS),
    "delta.checkpointInterval": str(CHECKPOINT_EVERY),
    "delta.logRetentionDuration": "interval 6 hours",  # an archive with --follow adds an entry every few seconds
    "delta.deletedFileRetentionDuration": "interval 7 days",
}


@dataclass(frozen=True, slots=True)
class LakeBatch:
    """The contents of one commit, after which the archive `query` has passed the seal `seal`."""

    query: str
    seal: int
    incarnation: str
    copied: Copied

    @property
    def name(self) -> str:
        return query_name(self.query, self.incarnation)

    def transactions(self) -> dict[str, int]:
        found = {branch_name(branch): last for branch, (_first, last) in self.copied.seals.items()}
        return {**found, self.name: self.seal}

    def facts(self) -> dict[str, Any]:
        return {"query": self.query, "seal": self.seal, **self.copied.figures()}


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file of the table. Shapes: `path` is relative to the table's folder; `date` is the date of its rows."""

    path: str
    date: str
    rows: int
    bytes: int
    first_ts_ms: int | None
    last_ts_ms: int | None


def branch_name(branch: Branch) -> str:
    """Return the name of a branch's transaction."""
    return "slotmq/" + "/".join(quote(part, safe="") for part in branch)


def query_name(query: str, incarnation: str) -> str:
    """Return the name of an archive's transaction for one run of the broker."""
    return f"slotmq-query/{query}/{incarnation}"


@contextmanager
def delta_faults(uri: str) -> Iterator[None]:
    """Replace exceptions of the Delta package by LakeRefused, with a text of one line."""
    try:
        yield
    except (DeltaError, OSError) as error:
        raise LakeRefused(f"{uri}: {_one_line(str(error)) or type(error).__name__}") from error


def _one_line(text: str) -> str:
    """Return the first line of an error text and the causes, which the package draws as a tree below it."""
    first, *others = [line for line in (COLOR.sub("", line).strip() for line in text.splitlines()) if line] or [""]
    causes = [line.removeprefix(CAUSE).strip() for line in others if line.startswith(CAUSE)]
    return ": ".join([first, *(cause for cause in causes if not cause.startswith("<"))])


class LakeTable:
    """A table. Shapes: `version` is a number, a time, a time as text, or None for the newest version."""

    def __init__(
        self, place: LakePlace, name: str, schema: pa.Schema, disk: Disk, *, version: int | str | datetime | None = None
    ) -> None:
        self.uri = f"{place.uri}/{name}"
        self.folder = place.root / name
        self.log = DeltaLog(self.folder, disk, local=place.folder is not None)
        self.options = dict(place.options)
        self._schema = schema
        self._disk = disk
        self._version = version

    @property
    def exists(self) -> bool:
        with delta_faults(self.uri):
            return DeltaTable.is_deltatable(self.uri, storage_options=self.options)

    def create(self) -> None:
        if self.exists:
            return
        self._disk.make_folder(self.folder)
        try:
            with delta_faults(self.uri):
                DeltaTable.create(
                    self.uri,
                    Schema.from_arrow(self._schema.append(pa.field(DATE, pa.date32()))),
                    mode="ignore",
                    partition_by=[DATE],
                    configuration=SETTINGS,
                    storage_options=self.options,
                )
        except LakeRefused:
            if not self.exists:  # otherwise another archive created it first
                raise
        self.log.sync(0)

    def load(self) -> DeltaTable:
        """Return the package's table object. Raises: LakeRefused if the table or its version cannot be read."""
        with delta_faults(self.uri):
            table = DeltaTable(self.uri, storage_options=self.options)
            if self._version is not None:
                self._load_version(table, self._version)
            return table

    def _load_version(self, table: DeltaTable, version: int | str | datetime) -> None:
        """Load an older version; refuse a time before the oldest one, which the package would accept."""
        if isinstance(version, int):
            if version > table.version():
                raise LakeRefused(f"{self.uri} has no version {version}: the last one is {table.version()}")
            table.load_as_version(version)
            return
        at = datetime.fromisoformat(version) if isinstance(version, str) else version
        at_ms = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000
        table.load_as_version(version)
        began_ms = self.log.written_ms(table.version())
        if began_ms is not None and began_ms > at_ms:
            oldest = datetime.fromtimestamp(began_ms / 1000, UTC).isoformat(timespec="seconds")
            raise LakeRefused(f"{self.uri} has no version of {at.isoformat()}: the oldest one is of {oldest}")

    # ---- reading

    def files(self, first_ms: int | None = None, end_ms: int | None = None) -> list[LakeFile]:
        """Return the files that may have rows with first_ms <= ts < end_ms, ordered by date and time."""
        found = [
            file
            for file in map(_lake_file, pa.table(self.load().get_add_actions(flatten=True)).to_pylist())
            if (first_ms is None or file.last_ts_ms is None or file.last_ts_ms >= first_ms)
            and (end_ms is None or file.first_ts_ms is None or file.first_ts_ms < end_ms)
        ]
        return sorted(found, key=lambda file: (file.date, file.first_ts_ms or 0, file.path))

    def last_seals(self, branches: Sequence[Branch]) -> dict[Branch, int]:
        """Return each branch's last seal in the table; leave out branches without one."""
        table = self.load()
        found = {branch: table.transaction_version(branch_name(branch)) for branch in branches}
        return {branch: seal for branch, seal in found.items() if seal is not None}

    def last_passed(self, query: str, incarnations: Iterable[str]) -> tuple[int, str] | None:
        """Return the last seal that an archive has passed, and the run of the broker that wrote the seal; or None."""
        table = self.load()
        versions = {start: table.transaction_version(query_name(query, start)) for start in incarnations}
        return max(((seal, start) for start, seal in versions.items() if seal is not None), default=None)

    # ---- writing

    def holds(self, batch: LakeBatch, table: DeltaTable | None = None) -> bool:
        """Return whether the table has a batch. Raises: TapTaken if another archive has written slots of the batch."""
        table = table or self.load()
        last_passed = table.transaction_version(batch.name)
        if last_passed is not None and batch.seal <= last_passed:
            return True
        for branch, (first, _last) in batch.copied.seals.items():
            archived = table.transaction_version(branch_name(branch)) or 0
            *_, vhost, tap = branch
            if first <= archived:
                raise TapTaken(
                    f"the lake has tap {tap!r} of vhost {vhost!r} up to seal {archived} already, "
                    f"and was to get seal {first} again: {ONE_WRITER}"
                )
        return False

    def commit(self, batch: LakeBatch, files: Sequence[NewFile]) -> bool:
        """Add a batch whose files are on disk; return whether it was added. Raises: LakeRefused, TapTaken."""
        adds = [AddAction(file.path, file.bytes, {DATE: file.date}, now_ms(), True, file.stats) for file in files]
        properties = CommitProperties(
            custom_metadata={"slotmq": batch.facts()},
            max_commit_retries=0,  # each attempt must be preceded by a comparison and a sync
            app_transactions=[Transaction(name, version) for name, version in batch.transactions().items()],
        )
        hooks = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)

        def append(table: DeltaTable) -> int:
            table.create_write_transaction(
                adds, "append", table.schema(), [DATE],
                commit_properties=properties, post_commithook_properties=hooks,
            )  # fmt: skip
            return table.version() + 1

        version = self._change(append, lambda table: self.holds(batch, table))
        if version is not None and not version % CHECKPOINT_EVERY:
            self._checkpoint()
        return version is not None

    def _checkpoint(self) -> None:
        """Create a checkpoint, and remove old entries once it is on disk.

        A failure is ignored, because the batch is committed, and the log only grows longer.
        """
        with suppress(LakeRefused, OSError):
            table = self.load()
            with delta_faults(self.uri):
                table.create_checkpoint()
                self.log.sync_checkpoint()
                table.cleanup_metadata()

    def discard(self, files: Sequence[NewFile]) -> None:
        """Remove the files of a failed batch, unless the log names them: its commit may have succeeded.

        If the log cannot be read, no file is removed.
        """
        with suppress(LakeRefused):
            named = {file.path for file in self.files()} if files else set()
            for file in files:
                if named.isdisjoint({file.path, unquote(file.path)}):
                    self._disk.remove(self.folder / file.path)

    # ---- maintenance

    def compact(self, target_bytes: int, day: str | None = None) -> dict[str, Any]:
        """Compact the small files of all days or of one day, and return the package's figures."""
        plain = ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE")
        properties = WriterProperties(
            compression="ZSTD", compression_level=1, column_properties={"body": plain, "raw": plain}
        )
        filters = None if day is None else [(DATE, "=", day)]
        return self._change(
            lambda table: table.optimize.compact(
                partition_filters=filters, target_size=target_bytes, writer_properties=properties
            )
        )

    def delete(self, predicate: str) -> int:
        """Delete the rows that meet an SQL condition, and return how many; `vacuum` later removes their bytes."""
        return int(self._change(lambda table: table.delete(predicate))["num_deleted_rows"])

    def vacuum(self, keep_hours: int) -> int:
        """Remove files replaced more than `keep_hours` ago, and old files without an entry; return how many."""
        table = self.load()
        self.log.sync(table.version())  # a power loss must not undo an entry whose replaced files are removed
        with delta_faults(self.uri):
            replaced = table.vacuum(keep_hours, dry_run=False, enforce_retention_duration=False)
            orphans = table.vacuum(
                max(keep_hours, ORPHAN_HOURS), dry_run=False, enforce_retention_duration=False, full=True
            )
        return len({*replaced, *orphans})

    def sweep(self, query: str) -> None:
        """Remove the files of an archive that no entry names. No other run of the archive may write at the time."""
        table = self.load()
        with delta_faults(self.uri):
            everything, replaced = (
                table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=full) for full in (True, False)
            )
        for path in set(everything) - set(replaced):
            if path.rpartition("/")[2].startswith(f"{query}-"):
                self._disk.remove(self.folder / path)

    def _change(self, work: Callable[[DeltaTable], Any], done: Callable[[DeltaTable], bool] = lambda _: False) -> Any:
        """Return the result of `work`, or None if the change is already `done`; retry if another writer was first."""
        for _ in range(ATTEMPTS):
            table = self.load()
            version = table.version()
            present = done(table)
            self.log.sync(version)  # the writer of that version may have died before its sync
            if present:
                return None
            try:
                with delta_faults(self.uri):
                    found = work(table)
            except LakeRefused as refused:
                if isinstance(refused.__cause__, CommitFailedError) and self.load().version() > version:
                    continue
                raise
            self.log.sync(self.load().version(), after=version)
            return found
        raise LakeRefused(f"{self.uri} changes faster than it can be written to")


def _lake_file(row: Mapping[str, Any]) -> LakeFile:
    first, last = (row.get(f"{name}.ts") for name in ("min", "max"))
    return LakeFile(
        path=unquote(row["path"]),
        date=row[f"partition.{DATE}"].isoformat(),
        rows=row["num_records"] or 0,
        bytes=row["size_bytes"],
        first_ts_ms=None if first is None else int(first.timestamp() * 1000),
        last_ts_ms=None if last is None else int(last.timestamp() * 1000) + 1,
    )
