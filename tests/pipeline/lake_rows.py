"""A lake of handmade messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from broker.pipeline.lake.lake import Lake
from broker.pipeline.lake.slot_copy import Copied, DayFiles
from broker.pipeline.lake.table import LakeBatch
from broker.pipeline.source.schema import ARROW_SCHEMA

__all__ = ["SLOT", "lake_of", "rows_of"]

STORE = "5" * 32
FIRST_US = 1_790_000_000_000_000
SLOT = 200


def rows_of(queue: str, messages: Sequence[tuple[str, str, bytes, bytes]], seal: int) -> Any:
    """Return rows of messages (exchange, key, properties, body) in slots of a queue, from this seal on."""
    count = len(messages)
    made: dict[str, Any] = {
        "vhost": ["/"] * count,
        "queue": [queue] * count,
        "slot": [n // SLOT * SLOT + 1 for n in range(count)],
        "seal": [seal + 2 * (n // SLOT) for n in range(count)],
        "offset": [n + 1 for n in range(count)],
        "ts": pa.array([FIRST_US + 1000 * n for n in range(count)], pa.int64()).cast(ARROW_SCHEMA.field("ts").type),
    }
    for at, name in enumerate(("exchange", "routing_key", "properties_raw", "body")):
        made[name] = [message[at] for message in messages]
    made["headers"] = ['{"CC": []}' if b"\x02CCA" in message[2] else None for message in messages]
    columns = [
        pa.array(made[field.name], field.type) if field.name in made else pa.nulls(count, field.type)
        for field in ARROW_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def lake_of(path: Path, *batches: Any) -> Lake:
    """Return a lake with these rows."""
    lake = Lake(path, create=True)
    files: list[Any] = []
    for batch in batches:
        with DayFiles(lake.disk, lake.message_table.folder, "test", ARROW_SCHEMA) as made:
            made.add(batch)
            files += made.finish()
    seals = {(STORE, "", "/", batch.column("queue")[0].as_py()): (1, 99) for batch in batches}
    assert lake.commit(LakeBatch("test", 99, "", Copied(tuple(files), seals=seals)))
    return lake
