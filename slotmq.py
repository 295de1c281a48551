"""What a notebook needs of the pipeline: `import slotmq`, then `slotmq.lake(slotmq.session(), "lake")`."""

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
    """Return the messages of a lake, a folder or s3://bucket/prefix, as they are now or were at a version.

    Shapes: `version` is a number or a time of the table of messages; `selection` is as `Lake.messages` takes it:
        since, until and columns.
    Raises: LakeRefused when it is none. Spark needs no Delta jar for it.
    """
    return Lake(place, version=version).messages(spark, **selection)
