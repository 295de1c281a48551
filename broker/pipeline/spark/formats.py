"""The formats that the pipeline adds to Spark, by their names in `spark.read.format(...)`."""

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
}
SPECULATION: Final = "spark.speculation"
SPECULATING: Final = {"MessageFormat": "SpeculatingMessageFormat"}  # Spark does not tell a writer about speculation


def register(spark: SparkSession) -> SparkSession:
    """Register the formats with any session, and return the session."""
    speculates = str(spark.conf.get(SPECULATION, "false")).lower() == "true"
    with _active(spark):
        for module, name in FORMATS.values():
            made = SPECULATING.get(name, name) if speculates else name
            spark.dataSource.register(getattr(import_module(module), made))
    return spark


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make a session active within a context: Spark checks there whether a name is taken, and registers elsewhere."""
    if not hasattr(spark, "sparkContext"):  # a Connect session has no context
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
    """Make a session active: creating a frame of local rows does that, and there is no public call for it."""
    spark.createDataFrame([], "n int")
