"""Lakes in Spark: read whatever version wrote them, compacted while an archive writes, queried in SQL."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

import slotmq
from broker.pipeline.faults import OK, USAGE, JobFailed
from broker.pipeline.job import Progress, Summary
from broker.pipeline.jobs.compact import CompactOptions, run_compact
from broker.pipeline.jobs.query import QueryOptions, run_query
from broker.pipeline.lake.lake import Lake
from broker.pipeline.lake.slot_copy import LakeTarget
from broker.pipeline.lake.table import LakeBatch
from broker.pipeline.source.slot_handle import SlotHandle
from tests.slot_folders import START_MS, STEP_MS, SlotFolder, numbered

ROWS = 40
DAY = "2023-11-14"


def add_slot(lake: Lake, folder: SlotFolder, batch: int) -> list[int]:
    """Archive one more slot, as a task and a commit do, and return its message ids."""
    seal = folder.add_slot(("audit", "news")[batch % 2], numbered(ROWS))
    target = LakeTarget(lake.place, "q", str(folder.path))
    lake.commit(LakeBatch("q", seal.seal, seal.incarnation, target.copy([SlotHandle.of(folder.store, seal)])))
    return list(range(seal.first, seal.end))


def add_older(lake: Lake) -> None:
    """Add a file as another program would: fewer columns, in another order."""
    columns = {
        "date": pa.array([date(2020, 1, 2)] * 2),
        "body": pa.array([b"old 1", b"old 2"], pa.binary()),
        "offset": pa.array([1, 2], pa.int64()),
        "queue": pa.array(["ancient", "ancient"]),
        "ts": pa.array([datetime(2020, 1, 2, tzinfo=UTC)] * 2, pa.timestamp("us", tz="UTC")),
    }
    write_deltalake(lake.message_table.uri, pa.table(columns), mode="append", schema_mode="merge")


def ids(lake: Lake, spark: SparkSession, **bounds: Any) -> list[tuple[str, int]]:
    """Return queue and message id of the rows, sorted."""
    frame = lake.messages(spark, columns=["queue", "offset"], **bounds)
    return sorted((row.queue, row.offset) for row in frame.collect())


def ask(spark: SparkSession, sql: str, **options: Any) -> Summary:
    """Return the result of a query."""
    return run_query(QueryOptions(lambda: spark, sql, **options), Progress("query", quiet=True))


def test_a_lake_is_read_compacted_and_asked(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Old files are read with nulls; a compaction beside an archive loses and doubles nothing; SQL covers all of it."""
    folder, lake = SlotFolder(tmp_path / "store"), Lake(tmp_path / "la{k}e {1,2} *", create=True)
    assert lake.messages(spark).count() == 0
    wanted = [(("audit", "news")[at % 2], n) for at in range(4) for n in add_slot(lake, folder, at)]
    add_older(lake)
    whole = sorted([*wanted, ("ancient", 1), ("ancient", 2)])
    assert ids(lake, spark) == whole
    older = lake.messages(spark, until="2021-01-01")
    assert len(older.inputFiles()) == 1 and "date=2020-01-02" in older.inputFiles()[0]
    assert [(row.body, row.routing_key, row.seal) for row in older.orderBy("offset").collect()] == [
        (b"old 1", None, None), (b"old 2", None, None),
    ]  # fmt: skip
    until = datetime.fromtimestamp((START_MS + 10 * STEP_MS) / 1000, UTC)
    assert ids(lake, spark, since=DAY, until=until) == [(queue, n) for queue, n in sorted(wanted) if n < 10]

    before = lake.messages(spark)
    done = run_compact(CompactOptions(lake.place.root), Progress("compact", quiet=True))
    assert (done.code, done.values["days"], done.values["files_before"], done.values["files_after"]) == (OK, 1, 5, 2)
    late = [("audit", n) for n in add_slot(Lake(lake.place.root), folder, 4)]
    assert ids(Lake(lake.place.root), spark) == sorted(whole + late)
    assert before.count() == len(whole)  # a reader of replaced files keeps reading
    assert ids(Lake(lake.place.root, version=2), spark) == sorted(wanted[: 2 * ROWS])
    [made] = [file for file in Lake(lake.place.root).files() if file.rows == 4 * ROWS]
    assert made.date == DAY and made.first_ts_ms == START_MS + STEP_MS
    removed = run_compact(CompactOptions(lake.place.root, keep_days=0), Progress("c", quiet=True))
    assert (removed.values["removed"], removed.values["days"]) == (6, 1)
    assert ids(Lake(lake.place.root), spark) == sorted(whole + late)
    frame = slotmq.lake(spark, lake.place.root, columns=["queue", "offset"])
    assert sorted((row.queue, row.offset) for row in frame.collect()) == sorted(whole + late)
    assert Lake(lake.place.root).message_table.load().count() == len(whole + late)

    sql = "SELECT queue, count(*) AS n, min(body) AS least FROM messages GROUP BY queue ORDER BY n DESC, queue"
    answer = ask(spark, sql, lake=lake.place.root, limit=2)
    assert (answer.values["columns"], answer.values["more"]) == (["queue", "n", "least"], True)
    assert answer.values["rows"] == [
        {"queue": "audit", "n": 120, "least": "0" + "." * 19}, {"queue": "news", "n": 80, "least": "0" + "." * 19},
    ]  # fmt: skip
    assert answer.lines[0].split() == ["queue", "n", "least"] and answer.lines[1].split()[:2] == ["audit", "120"]
    text = ask(
        spark,
        "SELECT 'a,b' AS x, body FROM messages WHERE queue = 'ancient' ORDER BY offset",
        lake=lake.place.root,
        csv=True,
    )
    assert text.lines == ("x,body", '"a,b",old 1', '"a,b",old 2')
    assert ask(spark, "SELECT count(*) n FROM bad", lake=lake.place.root).values["rows"] == [{"n": 0}]
    when = "SELECT min(ts) AS a, array(min(ts)) AS b, cast(min(ts) AS string) AS c FROM messages WHERE queue = 'news'"
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "America/New_York")
        time.tzset()
        [row] = ask(spark, when, lake=lake.place.root).values["rows"]
    time.tzset()
    assert row["a"][:19] == row["b"][0][:19] == row["c"][:19].replace(" ", "T")  # UTC, wherever the machine is
    live = "SELECT routing_key k, count(*) n FROM messages WHERE offset > 40 GROUP BY 1 ORDER BY 1 LIMIT 1"
    assert ask(spark, live, path=str(folder.path), taps=("audit",)).values["rows"] == [{"k": "k.0", "n": 8}]
    for wrong, said in [("SELECT nix FROM messages", "nix"), ("SELEC", "SELEC"), ("SELECT 1 FROM letters", "letters")]:
        with pytest.raises(JobFailed, match=said) as refused:
            ask(spark, wrong, lake=lake.place.root)
        assert refused.value.code == USAGE and "\n" not in str(refused.value)


def test_slots_are_streamed_as_rows(spark: SparkSession, tmp_path: Path) -> None:
    """A stream of slots has each of them once, and continues after its checkpoint."""
    folder = SlotFolder(tmp_path / "store")

    def stream() -> list[int]:
        slots = spark.readStream.format("slotmq-slots").load(str(folder.path))
        writer = slots.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "check"))
        assert writer.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination(120)
        return sorted(row.seal for row in spark.read.parquet(str(tmp_path / "rows")).collect())

    for seals in ([1, 2], [1, 2, 3, 4]):
        for _ in range(2):
            folder.add_slot("audit", numbered(ROWS))
        assert stream() == seals
