"""The pipeline's entry point for notebooks: `import slotmq`, then `slotmq.lake(slotmq.session(), "lake")`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.pipeline import Lake, register, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Lake", "lake", "register", "session"]


def lake(
    spark: SparkSession, place: str | Path, *, version: int | str | datetime | None = None, **selection: Any
) -> DataFrame:
    """Return the messages of a lake, a folder or s3://bucket/prefix, in their current state or at a version.

    Shapes: `version` is a number or a time of the table of messages; `selection` has the arguments of
        `Lake.messages`: since, until and columns.
    Raises: LakeRefused for a place that is not a lake. Spark needs no Delta jar.
    """
    return Lake(place, version=version).messages(spark, **selection)
