"""Stand-ins for parts of the Python data source API of PySpark 4.2 that 4.0 and 4.1 lack.

4.0    streams cannot be written in Arrow batches
4.0, 4.1    Spark does not pass a stream's offset when it requests the latest one, so limits of a trigger do not hold
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from pyspark.sql import datasource

__all__ = [
    "ARROW_STREAM_WRITES",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxFiles",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]

ARROW_STREAM_WRITES: Final = hasattr(datasource, "DataSourceStreamArrowWriter")
LIMITS: Final = find_spec("pyspark.sql.streaming.datasource") is not None

if TYPE_CHECKING or ARROW_STREAM_WRITES:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(datasource.DataSourceStreamWriter):
        """Stand in for the writer that 4.0 lacks; no format gives one to Spark there."""


if TYPE_CHECKING or LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class SupportsTriggerAvailableNow:
        """Stand in for the trait that 4.0 and 4.1 lack."""

    class ReadLimit:
        """Stand in for a limit, which Spark does not request."""

        def __init__(self, *_: int) -> None:
            pass

    class ReadAllAvailable(ReadLimit):
        """Stand in for no limit."""

    ReadMaxBytes = ReadMaxFiles = ReadMaxRows = ReadLimit
