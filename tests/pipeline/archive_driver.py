"""An archive in a separate process, to be killed: `python -m tests.pipeline.archive_driver STORE LAKE POINT BATCH`.

The process dies with its JVM at one point of the batch of the given number:

    task        a task has copied one of its slots
    files       the tasks are done, the log has no entry
    entry       the entry is in the log, Spark has not recorded the batch
    commit      Spark has recorded the batch, its slots are not released
    follow      at no point: it follows until another process ends it
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import WriterCommitMessage

from broker.pipeline.jobs.archive import ArchiveOptions, run_archive
from broker.pipeline.lake.archive_run import ArchiveRun
from broker.pipeline.lake.lake_format import LakeTarget, Written
from broker.pipeline.progress import Progress
from broker.pipeline.source.catalog import open_catalog, open_handle
from broker.pipeline.source.slot_handle import SlotHandle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POINTS = ("task", "files", "entry", "commit")


def kill_all(pids: tuple[int, ...]) -> None:
    """Kill the driver's JVM and then this process."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Opening:
    """Opens slots, and dies after enough of them."""

    store: str
    pids: tuple[int, ...]
    left: int

    def __call__(self, handle: SlotHandle) -> Any:
        if self.left == 0:
            kill_all(self.pids)
        self.left -= 1
        return open_handle(open_catalog(path=self.store), handle)


class DyingTarget(LakeTarget):
    """Die at the chosen point."""

    store: str
    point: str
    batch: int
    pids: tuple[int, ...]

    @classmethod
    def of(cls, target: LakeTarget, store: str, point: str, batch: int, pids: tuple[int, ...]) -> DyingTarget:
        """Return a target that dies at a point of a batch."""
        made = cls(**{each.name: getattr(target, each.name) for each in fields(target)})
        vars(made).update(store=store, point=point, batch=batch, pids=pids)
        return made

    def copy(self, slots: Sequence[SlotHandle]) -> Written:
        if self.point == "task" and self.batch + 1 in {slot.seal for slot in slots}:  # a batch is one slot
            target = LakeTarget(**{each.name: getattr(self, each.name) for each in fields(LakeTarget)})
            return replace(target, open_slot=Opening(self.store, self.pids, 0)).copy(slots)
        return super().copy(slots)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        dies = batch == self.batch
        if dies and self.point == "files":
            kill_all(self.pids)
        super().commit(messages, batch)
        if dies and self.point == "entry":
            kill_all(self.pids)


def dying_step(step: Callable[[ArchiveRun], Any], batch: int, pids: tuple[int, ...]) -> Callable[[ArchiveRun], Any]:
    """Return a step that dies instead of checking the batch."""

    def dying(run: ArchiveRun) -> Any:
        committed = run.checkpoint.committed()
        if committed is not None and committed.batch >= batch:
            kill_all(pids)
        return step(run)

    return dying


def main(store: str, lake: str, point: str, batch: int, where: str = "cold") -> None:
    """Archive, one slot per batch, on a JVM that dies too or on the user's server, which does not."""
    spark, pids = _warm() if where == "warm" else _cold()
    follow = point == "follow"
    if point == "commit":
        setattr(ArchiveRun, "step", dying_step(ArchiveRun.step, batch, pids))  # noqa: B010 - mypy allows no assignment
    elif not follow:
        made = ArchiveRun.target

        def dying(run: ArchiveRun, slots: str, max_bad: str) -> LakeTarget:
            return DyingTarget.of(made(run, slots, max_bad), store, point, batch, pids)

        setattr(ArchiveRun, "target", dying)  # noqa: B010 - mypy allows no assignment
    print(*pids, flush=True)
    options = ArchiveOptions(
        lambda: spark, Path(lake), path=store, batch_bytes=1 << 20 if follow else 1, follow=follow, every_s=0.2
    )
    run_archive(options, Progress("archive", quiet=True))
    spark.stop()


def _cold() -> tuple[SparkSession, tuple[int, ...]]:
    from pyspark import SparkContext

    from broker.pipeline import session
    from tests.pipeline.conftest import TEST_CONF

    spark = session(master="local[2]", conf=TEST_CONF)
    gateway: Any = SparkContext._gateway
    return spark, (gateway.proc.pid, os.getpid())


def _warm() -> tuple[SparkSession, tuple[int, ...]]:
    from broker.pipeline.spark.server import connect, files

    state = files().use()
    assert state is not None
    return connect(state, {}), (os.getpid(),)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), *sys.argv[5:])
