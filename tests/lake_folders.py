"""Lakes of test messages, written without Spark in the form of an archive."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from broker.pipeline.lake.lake import Lake
from broker.pipeline.lake.slot_copy import Copied, DayFiles
from broker.pipeline.lake.table import LakeBatch
from broker.pipeline.source.schema import ARROW_SCHEMA

__all__ = ["make_lake"]

QUERY = "test"


def make_lake(path: Path, *batches: pa.RecordBatch) -> Lake:
    """Return a lake of messages with one more file per day. Shapes: each row has `ts`."""
    lake = Lake(path, create=True)
    with DayFiles(lake.disk, lake.message_table.folder, QUERY, ARROW_SCHEMA) as files:
        for batch in batches:
            files.add(batch)
        made = files.finish()
    seal = lake.message_table.load().version() + 1
    lake.commit(LakeBatch(QUERY, seal, "", Copied(made, rows=sum(batch.num_rows for batch in batches))))
    return lake
