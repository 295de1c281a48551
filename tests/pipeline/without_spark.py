"""Archive as the command does, with the tasks in this process instead of Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from broker.pipeline.lake import Lake
from broker.pipeline.lake.archive_batches import ArchiveBatches, SlotPlan
from broker.pipeline.lake.archive_run import ArchiveRun
from broker.pipeline.lake.lake_format import LakeTarget, Written
from broker.pipeline.source.catalog import open_catalog, open_handle
from broker.pipeline.source.slot_handle import SlotHandle

__all__ = ["archive"]

URLS = ("http://", "https://")


def archive(lake: Path, place: str, cursor: str = "archive", *, stop_at: str = "", **choice: bool) -> dict[str, Any]:
    """Archive a data folder or a URL, and return the summary and the output.

    Shapes: with `stop_at` "planned" or "entry" the archive ends like a killed one after it planned a batch, or made
    its entry.
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
        plan = SlotPlan(where)
        ending.callback(plan.stop)
        with suppress(Killed):
            target = replace(run.target(place, "0"), open_slot=partial(open_handle, catalog))
            batches = ArchiveBatches(run.checkpoint, plan, StoppingTarget.of(target, stop_at), _tasks, run.begins)
            while batches.take():
                run.step()
        run.step()
        return {**run.values(), "said": said}


class Killed(Exception):
    """End the archive as a kill would."""


class StoppingTarget(LakeTarget):
    """A target that ends the archive before it copies or after its commit."""

    stop_at: str

    @classmethod
    def of(cls, target: LakeTarget, stop_at: str) -> StoppingTarget:
        """Return a target that ends the archive at its point."""
        made = cls(**{each.name: getattr(target, each.name) for each in fields(target)})
        vars(made)["stop_at"] = stop_at
        return made

    def copy(self, slots: Sequence[SlotHandle]) -> Written:
        if self.stop_at == "planned":
            raise Killed
        return super().copy(slots)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        super().commit(messages, batch)
        if self.stop_at == "entry":
            raise Killed


def _tasks(work: Callable[[Any], Written], items: Sequence[Any]) -> list[Written]:
    return [work(item) for item in items]
