"""Measures SQL over the slots of a running broker against the same SQL over Parquet by Spark's own reader."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.brokers import slotmq
from bench.pipeline.stage import Stage, WrongResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SLOTS = "SQL over slots, all columns"
PARQUET = "SQL over Parquet, all columns"
NARROW_SLOTS = "SQL over slots, two columns"
NARROW_PARQUET = "SQL over Parquet, two columns"
_NARROW = ("routing_key", "body")
_LENGTH_OF = ("string", "binary")


def measure(stage: Stage) -> dict[str, Any]:
    """Return rows per second and CPU time of one aggregate over slots and over Parquet, wide and narrow."""
    rows, files, spark = stage.plan.rows, stage.lake_files(), stage.spark
    with slotmq(stage.slots.parent) as broker:
        folder = str(broker.folder)

        def slots(columns: Sequence[str]) -> DataFrame:
            reader = spark.read.format("slotmq").option("path", folder)
            return (reader.option("columns", ",".join(columns)) if columns else reader).load()

        def parquet(columns: Sequence[str]) -> DataFrame:
            frame = spark.read.parquet(*files)
            return frame.select(*columns) if columns else frame

        wide, narrow = aggregates(parquet(()), ()), aggregates(parquet(()), _NARROW)
        right = {wide: answer(parquet(()), wide), narrow: answer(parquet(()), narrow)}

        def asked(frame_of: Any, columns: Sequence[str], sums: tuple[str, ...]) -> Any:
            def work(_folder: Path) -> int:
                found = answer(frame_of(columns), sums)
                if found != right[sums]:
                    raise WrongResult(f"sql: the answers differ: {found} and {right[sums]}")
                return rows

            return work

        contestants = {
            SLOTS: asked(slots, (), wide),
            PARQUET: asked(parquet, (), wide),
            NARROW_SLOTS: asked(slots, _NARROW, narrow),
            NARROW_PARQUET: asked(parquet, _NARROW, narrow),
        }
        return {"contestants": stage.race("sql", contestants, stage.plan.rounds)}


def aggregates(frame: DataFrame, columns: Sequence[str]) -> tuple[str, ...]:
    """Return expressions that need every value of the columns, or of all."""
    found = ["count(*)"]
    for field in frame.schema.fields:
        if not columns or field.name in columns:
            kind = field.dataType.simpleString()
            found.append(
                f"sum(length({field.name}))"
                if kind in _LENGTH_OF
                else f"max({field.name})"
                if kind in {"timestamp", "boolean"}
                else f"sum({field.name})"
            )
    return tuple(found)


def answer(frame: DataFrame, sums: Sequence[str]) -> tuple[Any, ...]:
    """Return the one row of an aggregate."""
    return tuple(frame.selectExpr(*sums).collect()[0])
