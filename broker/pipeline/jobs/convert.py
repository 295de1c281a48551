"""`slotmq pipeline convert`: converts a lake of version 0.1 to Delta tables, in its folder. It starts no Spark.

Only this module knows the old format. A table had its files in data/, and a log in _log/:

    <query>-<batch, 20 digits>.json        the files that one batch added and removed, and its seals of each tap
    snapshot-<entries, 20 digits>.json     the fold of all earlier entries

Files stay in place. Files from before rows named their store are rewritten with the store.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from broker.cli.parser import add_command
from broker.pipeline.faults import LakeRefused
from broker.pipeline.job import Summary, add_output, carry_out, path_argument
from broker.pipeline.job_failure import OK, USAGE, JobFailed
from broker.pipeline.lake.lake import OLD, Lake
from broker.pipeline.lake.parquet_file import NewFile, ParquetFile, stats_of
from broker.pipeline.lake.slot_copy import Branch, Copied
from broker.pipeline.lake.table import LakeBatch
from broker.pipeline.progress import Progress
from broker.pipeline.source.schema import ARROW_SCHEMA

__all__ = ["add_convert", "run_convert"]

KIND: Final = "slotmq-lake"
META_FORMAT: Final = 1
LOG_FORMAT: Final = 2
CONVERT: Final = "convert"
BATCH_ROWS: Final = 50_000
_ENTRY: Final = re.compile(r"(?P<query>.+)-(?P<batch>\d{20})\.json")
_SNAPSHOT: Final = "snapshot"

Tap = tuple[str, str]  # vhost and name


def add_convert(commands: Any) -> None:
    """Add the command."""
    command = add_command(commands, "convert", "convert a lake of version 0.1 to Delta tables")
    command.add_argument(
        "--lake", metavar="DIR", type=path_argument, required=True, help="the lake; nothing else may use it meanwhile"
    )
    add_output(command)
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    return carry_out(arguments, "convert", lambda progress: run_convert(arguments.lake, progress))


@dataclass
class OldTable:
    """The contents of a table's log: its files, each with the stores of its taps, and the last seals."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    stores: dict[str, dict[Tap, str]] = field(default_factory=dict)  # by file, if its entry still exists
    removed: set[str] = field(default_factory=set)
    seals: dict[Branch, int] = field(default_factory=dict)
    covered: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, log: Path) -> OldTable:
        """Return the table that a log describes. Raises: LakeRefused."""
        made = cls()
        names = sorted(path.name for path in log.glob("*.json"))
        try:
            for name in [name for name in names if name.startswith(f"{_SNAPSHOT}-")][-1:]:
                made._take_snapshot(_json(log / name))
            for name in names:
                found = _ENTRY.fullmatch(name)
                if found is not None and found["query"] != _SNAPSHOT:
                    made._take_entry(_json(log / name))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LakeRefused(f"{log} cannot be read: {error!r}") from error
        return made

    def _take_snapshot(self, found: Mapping[str, Any]) -> None:
        self.files = {file["path"]: file for file in found["files"]}
        self.removed = set(found["removed"])
        self.covered = dict(found["covered"])
        for store, vhost, tap, seal, *start in found["archived"]:
            self.seals[store, (start[0] if start else None) or "", vhost, tap] = seal

    def _take_entry(self, found: Mapping[str, Any]) -> None:
        sealed = found.get("sealed", ())
        for file in found.get("add", ()):
            self.stores[file["path"]] = {(one["vhost"], one["tap"]): one["store"] for one in sealed}
            if file["path"] not in self.removed:
                self.files[file["path"]] = file
        for path in found.get("remove", ()):
            self.files.pop(path, None)
            self.removed.add(path)
        for one in sealed:
            branch = (one["store"], one.get("incarnation") or "", one["vhost"], one["tap"])
            if one["seals"]:
                self.seals[branch] = max(self.seals.get(branch, 0), one["seals"][-1][1])
        self.covered[found["query"]] = max(self.covered.get(found["query"], -1), found["batch"])

    def store_of(self, path: str, tap: Tap) -> str | None:
        """Return the store of a tap's rows in a file, None if two stores have a tap of that name."""
        stores = {branch[0] for branch in self.seals if branch[2:] == tap}
        return self.stores.get(path, {}).get(tap) or (stores.pop() if len(stores) == 1 else None)


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes())
    if found.get("format", LOG_FORMAT) > LOG_FORMAT:
        raise LakeRefused(f"{path} is of format {found['format']}, and version 0.1 wrote up to {LOG_FORMAT}")
    return found


def run_convert(folder: Path, progress: Progress) -> Summary:
    """Convert, and return the summary; an interrupted conversion is resumed. Raises: JobFailed."""
    try:
        meta = json.loads((folder / OLD).read_bytes())
        if (meta["kind"], meta["format"]) != (KIND, META_FORMAT):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        raise JobFailed(f"{folder} is no lake of version 0.1", USAGE) from None
    try:
        lake = Lake(folder, unchecked=True)
        old, bad = (OldTable.read(lake.place.root / name / "_log") for name in ("messages", "bad"))
        for table in (lake.bad_table, lake.message_table):
            table.log.repair()
            table.create()
        batch = LakeBatch(CONVERT, 0, Copied(seals={branch: (seal, seal) for branch, seal in old.seals.items()}))
        files: tuple[NewFile, ...] = ()
        if not lake.message_table.check(batch):
            progress.step("converting")
            files = tuple(_converted(lake, old, path, progress) for path in sorted(old.files))
            lake.note_taps(old.seals)
            bad_files = [_kept(lake.bad_table.folder, file) for file in bad.files.values()]
            lake.bad_table.append(LakeBatch(CONVERT, 0, Copied()), bad_files)
            lake.message_table.append(batch, files)
        for query, last in old.covered.items():
            lake.message_table.append(LakeBatch(query, last, Copied()), ())
    except LakeRefused as refused:
        raise JobFailed(str(refused)) from None
    _clean(lake, old)
    rows = sum(file["rows"] for file in old.files.values())
    return Summary({"lake": str(folder), "rows": rows, "files": len(old.files), "taps": len(old.seals)}, OK)


def _kept(table: Path, file: Mapping[str, Any]) -> NewFile:
    import pyarrow.parquet as pq

    path = f"data/{file['path']}"
    try:
        return NewFile(path, file["date"], (table / path).stat().st_size, stats_of(pq.read_metadata(table / path)))
    except (OSError, ValueError) as error:
        raise LakeRefused(f"{table / path} cannot be read: {error}") from error


def _converted(lake: Lake, old: OldTable, path: str, progress: Progress) -> NewFile:
    """Return a file of the new table, rewritten if its rows do not name their store."""
    import pyarrow.parquet as pq

    table, file = lake.message_table.folder, old.files[path]
    kept = _kept(table, file)
    progress.add(rows=file["rows"])
    with pq.ParquetFile(table / kept.path) as parquet:
        if "store" in parquet.schema_arrow.names:
            return kept
        target = f"date={file['date']}/{CONVERT}-{Path(path).name}"
        lake.disk.remove(table / target)  # left by an interrupted conversion
        made = ParquetFile(lake.disk, table, target, ARROW_SCHEMA)
        for batch in _with_store(parquet, old, path):
            made.add(batch)
    return made.finish(file["date"])


def _with_store(parquet: Any, old: OldTable, path: str) -> Iterator[Any]:
    import pyarrow as pa

    for batch in parquet.iter_batches(BATCH_ROWS):
        taps = zip(*(batch.column(name).to_pylist() for name in ("vhost", "queue")), strict=True)
        made = {"store": pa.array([old.store_of(path, tap) for tap in taps], pa.string())}
        for name in batch.schema.names:
            made[name] = batch.column(name)
        columns = [made[name] if name in made else pa.nulls(batch.num_rows, ARROW_SCHEMA.field(name).type)
                   for name in ARROW_SCHEMA.names]  # fmt: skip
        yield pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def _clean(lake: Lake, old: OldTable) -> None:
    """Remove the files of the old format; without _meta.json the lake is converted."""
    live = {file.path for file in lake.message_table.files()}
    root = lake.place.root
    for path in old.files:
        if f"data/{path}" not in live:
            (root / "messages" / "data" / path).unlink(missing_ok=True)
    for name in ("messages", "bad"):
        shutil.rmtree(root / name / "_log", ignore_errors=True)
    for leftover in [*root.glob(".writing-*"), root / "_compact.lock", root / OLD]:
        leftover.unlink(missing_ok=True)
    lake.disk.sync_folder(root)
