"""Measures the archive job against Spark's own copy from Parquet to Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.pipeline.stage import Stage

ARCHIVE = "archive: slots to a lake"
SPARK = "Spark: Parquet to Parquet"
SOURCE = "slotmq source to Spark's Parquet writer"
_CODEC = "zstd"


def measure(stage: Stage) -> dict[str, Any]:
    """Return rows per second and CPU time of the archive, of Spark's own reader and writer, and of both together."""
    files, rows = stage.lake_files(), stage.plan.rows
    spark = stage.spark

    def archive(folder: Path) -> int:
        return stage.archive(stage.slots, folder / "lake", rows)

    def parquet(folder: Path) -> int:
        spark.read.parquet(*files).write.option("compression", _CODEC).parquet(str(folder / "out"))
        return rows

    def source(folder: Path) -> int:
        frame = spark.read.format("slotmq").option("path", str(stage.slots)).load()
        frame.write.option("compression", _CODEC).parquet(str(folder / "out"))
        return rows

    contestants = {ARCHIVE: archive, SPARK: parquet, SOURCE: source}
    slot_bytes = sum(path.stat().st_size for path in (stage.slots / "slots").glob("*.slot"))
    return {
        "contestants": stage.race("archive", contestants, stage.plan.rounds),
        "slot_bytes_per_row": slot_bytes / rows,
        "lake_bytes_per_row": sum(Path(path).stat().st_size for path in files) / rows,
    }
