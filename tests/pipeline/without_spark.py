"""Archives as the command does, with a plain loop in the place of Spark: its checkpoint, its calls, in its order."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from broker.pipeline.lake import Lake
from broker.pipeline.lake.archive_run import ArchiveRun
from broker.pipeline.lake.bad_share import BadShare
from broker.pipeline.lake.lake_format import LakeTarget
from broker.pipeline.source.catalog import open_catalog, open_handle
from broker.pipeline.source.schema import SLOTS_ARROW_SCHEMA
from broker.pipeline.source.slot_format import SlotStream
from broker.pipeline.source.slot_handle import SlotHandle
from broker.slot_files.slot_file import SlotView

__all__ = ["archive"]

TYPES = {"int64": "long", "string": "string", "timestamp[us, tz=UTC]": "timestamp"}
URLS = ("http://", "https://")


def archive(lake: Path, place: str, cursor: str = "archive", *, stop_at: str = "", **choice: bool) -> dict[str, Any]:
    """Archive what there is at a data folder or a URL, and return the summary, with what was said.

    Shapes: with `stop_at` "planned" or "entry" it ends as if killed when it planned a batch, or made its entry.
    """
    where = {"url" if place.startswith(URLS) else "path": place}
    catalog = open_catalog(**where)
    said: list[str] = []
    run = ArchiveRun(Lake(lake, create=True), catalog, cursor, say=said.append)
    with ExitStack() as ending:
        ending.callback(catalog.close)
        ending.callback(run.end)
        run.begin(**choice)
        run.cursors.seal_now()
        reader = _reader(run, where)
        ending.callback(reader.stop)
        _stream(run, reader, partial(open_handle, catalog), stop_at)
        run.step()
        return {**run.values(), "said": said}


def _reader(run: ArchiveRun, where: dict[str, str]) -> SlotStream:
    schema = StructType()
    for field in SLOTS_ARROW_SCHEMA:
        schema = schema.add(field.name, TYPES[str(field.type)])
    return SlotStream({**where, "from": run.begins()}, schema)


def _stream(run: ArchiveRun, reader: SlotStream, opening: Callable[[SlotHandle], SlotView], stop_at: str) -> None:
    options = run.options()
    target = LakeTarget(
        str(run.lake.path), None, options["query"], BadShare.parse("0"), json.loads(options["skip"]), open_slot=opening
    )
    offsets, commits = (run.checkpoint.folder / name for name in ("offsets", "commits"))
    for folder in (offsets, commits):
        folder.mkdir(exist_ok=True)
    batch = len(list(commits.iterdir()))
    start = _offset(offsets / str(batch - 1)) if batch else reader.initialOffset()
    while True:
        planned = offsets / str(batch)
        end = _offset(planned) if planned.exists() else reader.latestOffset(start, ReadAllAvailable())
        if end == start:
            break
        planned.write_text(f"v1\n{{}}\n{json.dumps(end)}")
        if stop_at == "planned":
            return
        rows = [made for part in reader.partitions(start, end) for made in reader.read(part)]
        target.commit([target.write(iter(rows))], batch)
        if stop_at == "entry":
            return
        (commits / str(batch)).write_text("v1\n{}")
        run.step()
        start, batch = end, batch + 1


def _offset(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text().split("\n")[2])
    return found
