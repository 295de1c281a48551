"""The formats that the pipeline brings to Spark, by the names that `spark.read.format(...)` takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FORMATS", "register"]

FORMATS: Final = {  # name -> module and class
    "slotmq": ("broker.pipeline.message_format", "MessageFormat"),
    "slotmq-slots": ("broker.pipeline.source.slot_format", "SlotFormat"),
    "slotmq-lake": ("broker.pipeline.lake.lake_format", "LakeFormat"),
}
SPECULATION: Final = "spark.speculation"
SPECULATING: Final = {"MessageFormat": "SpeculatingMessageFormat"}  # a writer does not hear of it from Spark


def register(spark: SparkSession) -> SparkSession:
    """Make the formats known to a session, whoever made it, and return it."""
    speculates = str(spark.conf.get(SPECULATION, "false")).lower() == "true"
    with _active(spark):
        for module, name in FORMATS.values():
            made = SPECULATING.get(name, name) if speculates else name
            spark.dataSource.register(getattr(import_module(module), made))
    return spark


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one for a while: Spark looks there whether a name is taken, not where it registers."""
    if not hasattr(spark, "sparkContext"):  # over Connect there is none
        yield
        return
    before = type(spark).getActiveSession()
    _activate(spark)
    try:
        yield
    finally:
        if before is not None:
            _activate(before)


def _activate(spark: SparkSession) -> None:
    """Make a session the active one: to make a frame of local rows does, and no public call is named for it."""
    spark.createDataFrame([], "n int")
