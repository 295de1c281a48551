"""The peers of the commands, each as a program: `python -m bench.pipeline.command_peers WHAT ...`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _spark() -> SparkSession:
    """Return a session with default settings, on the Java of our commands."""
    from pyspark.sql import SparkSession

    from broker.pipeline.spark.java import find_java

    os.environ["JAVA_HOME"] = str(find_java().home)
    return SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate()


def _files(path: str) -> list[str]:
    found: list[str] = json.loads(Path(path).read_text())
    return found


def start() -> None:
    """Start Spark, and run one job."""
    _spark().range(1).count()


def query(files: str) -> None:
    """Run the command's query in Spark."""
    frame = _spark().read.parquet(*_files(files))
    frame.createOrReplaceTempView("messages")
    print(
        frame.sparkSession.sql("SELECT exchange, count(*), avg(length(body)) FROM messages GROUP BY exchange").collect()
    )


def query_bare(files: str) -> None:
    """Run the command's query in Arrow."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    table = ds.dataset(_files(files), format="parquet").to_table(columns=["exchange", "body"])
    sizes = table.select(["exchange"]).append_column("size", pc.binary_length(table.column("body")))
    print(sizes.group_by("exchange").aggregate([("size", "count"), ("size", "mean")]).to_pylist())


def copy(files: str, folder: str, rows: str) -> None:
    """Let Spark copy `rows` rows from Parquet to Parquet."""
    frame = _spark().read.parquet(*_files(files)).limit(int(rows))
    frame.write.option("compression", "zstd").parquet(folder)


def archive_bare(store: str, folder: str) -> None:
    """Archive in this process, without Spark."""
    from broker.pipeline.lake.archive_run import ArchiveRun, SlotPlan
    from broker.pipeline.lake.lake import Lake
    from broker.pipeline.source.catalog import open_catalog

    run = ArchiveRun(Lake(Path(folder), create=True), open_catalog(path=store), "bare", max_bad="0")
    run.begin()
    plan, target = SlotPlan({"path": store}), run.target(store)
    while run.take(plan, target, lambda work, items: list(map(work, items))):
        run.step()
    run.end()


PEERS: dict[str, Callable[..., None]] = {
    "start": start,
    "query": query,
    "query-bare": query_bare,
    "copy": copy,
    "archive-bare": archive_bare,
}

if __name__ == "__main__":
    PEERS[sys.argv[1]](*sys.argv[2:])
