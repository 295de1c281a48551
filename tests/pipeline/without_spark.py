"""Archives as the command does, but runs the tasks in this process instead of Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from broker.pipeline.lake.archive_run import ArchiveRun
from broker.pipeline.lake.lake import Lake
from broker.pipeline.lake.slot_copy import Copied
from broker.pipeline.source.catalog import open_catalog
from broker.pipeline.source.seal_stream import SealStream, StreamOffset

__all__ = ["archive"]

URLS = ("http://", "https://")


def archive(lake: Path, place: str, cursor: str = "archive", *, stop_at: str = "", **choice: bool) -> dict[str, Any]:
    """Archive a data folder or a URL, and return the summary and the output.

    Shapes: with `stop_at` "files", the archive ends as if killed after its tasks copied a batch, with "entry" after
    the batch was committed.
    """
    where = {"url" if place.startswith(URLS) else "path": place}
    catalog = open_catalog(**where)
    said: list[str] = []
    run = StoppingRun(Lake(lake, create=True), catalog, cursor, max_bad="0", say=said.append)
    run.stop_at = stop_at
    with ExitStack() as ending:
        ending.callback(catalog.close)
        ending.callback(run.end)
        run.begin(**choice)
        run.cursors.seal_now()
        plan = SealStream(where)
        ending.callback(plan.stop)
        with suppress(Killed):
            target = run.target(where.get("url"))
            while run.copy_batch(plan, target, _tasks):
                run.release_slots()
        run.release_slots()
        return {**run.values(), "said": said}


class Killed(Exception):
    """Ends the archive as a kill would."""


class StoppingRun(ArchiveRun):
    """An archive that ends before or after its first commit."""

    stop_at = ""

    def commit(self, copied: Copied, end: StreamOffset) -> None:
        if self.stop_at == "files":
            raise Killed
        super().commit(copied, end)
        if self.stop_at == "entry":
            raise Killed


def _tasks(work: Callable[[Any], Copied], items: Sequence[Any]) -> list[Copied]:
    return [work(item) for item in items]
