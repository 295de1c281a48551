"""Converting a lake of version 0.1 to Delta tables: rows, seals and the archive's position are kept."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from broker.pipeline.job_failure import OK, USAGE, JobFailed
from broker.pipeline.progress import Progress

pytest.importorskip("deltalake")

import pyarrow as pa
import pyarrow.parquet as pq

from broker.pipeline.jobs import convert
from broker.pipeline.lake import Lake, LakeRefused
from broker.pipeline.lake.table import LakeTable
from tests.delta_log import DeltaTableLog, messages_of, rows_of
from tests.upgrade.recordings import FORMATS, unpack

HEARD = 6
DATE = "2020-01-02"


def converted(lake: Path) -> dict[str, Any]:
    """Convert a lake and return the summary."""
    summary = convert.run_convert(lake, Progress("convert", quiet=True))
    assert summary.code == OK
    return dict(summary.values)


@pytest.mark.parametrize("recorded", FORMATS)
def test_a_recorded_lake_is_converted(recorded: str, tmp_path: Path) -> None:
    """The converted rows name their store, and the converted checkpoint is continued."""
    lake = unpack(recorded, "lake", tmp_path / "lake")
    with pytest.raises(LakeRefused, match=r"is a lake of version 0\.1"):
        Lake(lake)
    note = json.loads((lake / "_checkpoints" / "archive" / "archive.json").read_text())
    assert converted(lake)["rows"] == HEARD
    assert messages_of(lake) == list(range(1, HEARD + 1))
    assert {row["store"] for row in rows_of(lake / "messages", "store")} == {note["store"]}
    found = Lake(lake)
    assert found.archived(note["store"]) == {("/", "heard"): {"": 2}}
    assert found.message_table.last_batch(note["query"]) == 0
    assert sorted(path.name for path in lake.iterdir()) == ["_checkpoints", "_taps", "bad", "messages"]
    with pytest.raises(JobFailed, match=r"is no lake of version 0\.1") as refused:
        converted(lake)
    assert refused.value.code == USAGE


class OldLake:
    """A lake of version 0.1 as that version wrote it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for table in ("messages", "bad"):
            (path / table / "_log").mkdir(parents=True)
        (path / "_meta.json").write_text(json.dumps({"kind": "slotmq-lake", "format": 1}))

    def write(self, name: str, offsets: list[int], *, queue: str = "audit", **columns: list[str]) -> dict[str, Any]:
        """Write a file and return its fields of an entry."""
        path = self.path / "messages" / "data" / f"date={DATE}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        moment = pa.array([datetime(2020, 1, 2, tzinfo=UTC)] * len(offsets), pa.timestamp("us", tz="UTC"))
        queues = [queue] * len(offsets)
        pq.write_table(
            pa.table({"vhost": ["/"] * len(offsets), "queue": queues, "offset": offsets, "ts": moment, **columns}), path
        )
        return {"path": f"date={DATE}/{name}", "date": DATE, "rows": len(offsets)}

    def enter(self, name: str, **fields: Any) -> None:
        """Write an entry or a snapshot."""
        (self.path / "messages" / "_log" / f"{name}.json").write_text(json.dumps({"format": 2, **fields}))


def seal_range(
    store: str, first: int, last: int, *, tap: str = "audit", incarnation: str | None = None
) -> dict[str, Any]:
    """Return an entry's fields for the seals of a tap."""
    return {"store": store, "vhost": "/", "tap": tap, "seals": [[first, last]], "incarnation": incarnation}


def test_snapshots_compactions_and_two_stores_are_converted(tmp_path: Path) -> None:
    """Compacted files are left out; rows of two stores with equal tap names have the known store."""
    old = OldLake(tmp_path / "lake")
    replaced, merged = old.write("q-1.parquet", [1, 2]), old.write("compact-1.parquet", [1, 2])
    late, other = old.write("q-2.parquet", [3]), old.write("r-1.parquet", [1])
    named = old.write("q-3.parquet", [4], store=["named"], incarnation=["run"])
    alone = old.write("q-4.parquet", [1], queue="alone")
    old.enter(
        f"snapshot-{2:020}", covered={"q": 0, "compact": 0}, removed={replaced["path"]: 5}, files=[merged],
        archived=[["s" * 32, "/", "audit", 2]],
    )  # fmt: skip
    old.enter(f"q-{0:020}", query="q", batch=0, add=[replaced], sealed=[seal_range("s" * 32, 1, 2)])
    old.enter(f"q-{1:020}", query="q", batch=1, add=[late], sealed=[seal_range("s" * 32, 3, 3)])
    old.enter(f"r-{0:020}", query="r", batch=0, add=[other], sealed=[seal_range("t" * 32, 1, 1)])
    old.enter(f"q-{2:020}", query="q", batch=2, add=[named], sealed=[seal_range("s" * 32, 4, 5, incarnation="run")])
    old.enter(f"q-{3:020}", query="q", batch=3, add=[alone], sealed=[seal_range("s" * 32, 6, 6, tap="alone")])
    assert (converted(old.path)["rows"], converted_rows(old.path)) == (
        6,
        [("alone", 1, "s" * 32), ("audit", 1, None), ("audit", 1, "t" * 32), ("audit", 2, None),
         ("audit", 3, "s" * 32), ("audit", 4, "named")],
    )  # fmt: skip
    lake = Lake(old.path)
    assert lake.archived("s" * 32) == {("/", "audit"): {"": 3, "run": 5}, ("/", "alone"): {"": 6}}
    assert lake.archived("t" * 32) == {("/", "audit"): {"": 1}}
    assert [lake.message_table.last_batch(query) for query in ("q", "r", "x")] == [3, 0, -1]


def converted_rows(lake: Path) -> list[tuple[Any, ...]]:
    """Return queue, offset and store of the rows, sorted."""
    found = [tuple(row.get(name) for name in ("queue", "offset", "store")) for row in rows_of(lake / "messages")]
    return sorted(found, key=lambda row: (row[0], row[1], row[2] or ""))


@pytest.mark.parametrize("dies_at", range(1, 6))
def test_a_conversion_that_dies_is_gone_on_with(
    recorded_lake: Path, dies_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversion that dies before or after a commit is resumed; until the old log is removed it is no lake."""
    calls = 0

    def dying(append: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == dies_at:
                raise KeyboardInterrupt
            return append(*arguments)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "append", dying(LakeTable.append))
        patch.setattr(convert, "_clean", dying(convert._clean))
        try:
            converted(recorded_lake)
        except KeyboardInterrupt:
            with pytest.raises(LakeRefused, match=r"is a lake of version 0\.1"):
                Lake(recorded_lake)
            converted(recorded_lake)
    assert messages_of(recorded_lake) == list(range(1, HEARD + 1))
    assert len(DeltaTableLog.read(recorded_lake / "messages").files) == 1


@pytest.fixture
def recorded_lake(tmp_path: Path) -> Path:
    """Provide a lake that version 0.1 wrote."""
    return unpack(FORMATS[0], "lake", tmp_path / "lake")


def test_what_cannot_be_converted_stays_as_it_is(recorded_lake: Path) -> None:
    """A missing file and an entry of a later format are reported with one line, and the old log is kept."""
    [file] = recorded_lake.glob("messages/data/*/*.parquet")
    shutil.move(file, recorded_lake / "kept")
    with pytest.raises(JobFailed, match=r"parquet cannot be read"):
        converted(recorded_lake)
    shutil.move(recorded_lake / "kept", file)
    [entry] = recorded_lake.glob("messages/_log/*.json")
    whole = entry.read_text()
    entry.write_text(json.dumps(json.loads(whole) | {"format": 3}))
    with pytest.raises(JobFailed, match=r"is of format 3, and version 0\.1 wrote up to 2"):
        converted(recorded_lake)
    entry.write_text(whole)
    assert converted(recorded_lake)["rows"] == HEARD
