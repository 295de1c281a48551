"""An archive in a process of its own, to be killed: `python -m tests.pipeline.archive_driver STORE LAKE POINT BATCH`.

It is gone, JVM and all, at a point of the batch of that number:

    task        a task has copied one of its slots
    files       the tasks are done, nothing is in the log
    manifest    the entry is in the log, Spark does not know it yet
    commit      Spark has noted the batch, its slots are not released yet
    follow      at no point: it follows until somebody else ends it
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from broker.pipeline.job import Progress
from broker.pipeline.jobs.archive import ArchiveOptions, run_archive
from broker.pipeline.lake.archive_run import ArchiveRun
from broker.pipeline.lake.lake_format import LakeFormat, LakeStreamWriter
from broker.pipeline.source.catalog import open_catalog, open_handle
from broker.pipeline.source.slot_handle import SlotHandle

POINTS = ("task", "files", "manifest", "commit")


def kill_all(pids: tuple[int, ...]) -> None:
    """End the driver, its JVM and, as its last deed, this process."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Opening:
    """Opens slots, until it has opened enough."""

    store: str
    pids: tuple[int, ...]
    left: int

    def __call__(self, handle: SlotHandle) -> Any:
        if self.left == 0:
            kill_all(self.pids)
        self.left -= 1
        return open_handle(open_catalog(path=self.store), handle)


class DyingWriter(LakeStreamWriter):
    """Dies at its point."""

    def __init__(self, writer: LakeStreamWriter, store: str, point: str, batch: int, pids: tuple[int, ...]) -> None:
        super().__init__(writer.target)
        self.store, self.point, self.batch, self.pids = store, point, batch, pids

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        rows = list(iterator)
        seals = [seal for batch in rows for seal in batch.column("seal").to_pylist()]
        if self.point == "task" and self.batch + 1 in seals:  # a batch is one slot
            return replace(self.target, open_slot=Opening(self.store, self.pids, 0)).write(iter(rows))
        return super().write(iter(rows))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        dies = batchId == self.batch
        if dies and self.point == "files":
            kill_all(self.pids)
        super().commit(messages, batchId)
        if dies and self.point == "manifest":
            kill_all(self.pids)


def dying_format(store: str, point: str, batch: int, pids: tuple[int, ...]) -> type[LakeFormat]:
    """Return the sink whose writer dies; Spark pickles the class as it is here."""

    class DyingFormat(LakeFormat):
        def streamWriter(self, schema: Any, overwrite: bool) -> LakeStreamWriter:
            return DyingWriter(super().streamWriter(schema, overwrite), store, point, batch, pids)

    return DyingFormat


def dying_step(step: Callable[[ArchiveRun], Any], batch: int, pids: tuple[int, ...]) -> Callable[[ArchiveRun], Any]:
    """Return a step that dies in place of looking at that batch."""

    def dying(run: ArchiveRun) -> Any:
        committed = run.checkpoint.committed()
        if committed is not None and committed.batch >= batch:
            kill_all(pids)
        return step(run)

    return dying


def main(store: str, lake: str, point: str, batch: int) -> None:
    """Archive, one slot a batch."""
    from pyspark import SparkContext

    from broker.pipeline import session
    from tests.pipeline.conftest import TEST_CONF

    spark = session(master="local[2]", conf=TEST_CONF)
    gateway: Any = SparkContext._gateway
    pids = (gateway.proc.pid, os.getpid())
    follow = point == "follow"
    if point == "commit":
        setattr(ArchiveRun, "step", dying_step(ArchiveRun.step, batch, pids))  # noqa: B010 - mypy allows no assignment
    elif not follow:
        spark.dataSource.register(dying_format(store, point, batch, pids))
    print(*pids, flush=True)
    options = ArchiveOptions(
        lambda: spark, Path(lake), path=store, batch_bytes=1 << 20 if follow else 1, follow=follow, every_s=0.2
    )
    run_archive(options, Progress("archive", quiet=True))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
