"""An archive in a process that kills itself: `python -m tests.pipeline.archive_driver STORE LAKE POINT BATCH`.

The process and its JVM are killed at a point of the numbered batch:

    task        a task is about to copy its slots
    files       the tasks have ended, the log has no entry
    entry       the entry is in the log, the slots are not released
    follow      never: it follows until another process kills it
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.pipeline.job import Progress
from broker.pipeline.jobs.archive import ArchiveOptions, run_archive
from broker.pipeline.lake.archive_run import ArchiveRun
from broker.pipeline.lake.slot_copy import Copied, LakeTarget, Slots
from broker.pipeline.source.seal_stream import StreamOffset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def kill_all(pids: tuple[int, ...]) -> None:
    """Kill the driver's JVM and then this process."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class DyingTarget(LakeTarget):
    """Kills the processes in the task that copies the slot of a seal."""

    seal: int
    pids: tuple[int, ...]

    @classmethod
    def of(cls, target: LakeTarget, seal: int, pids: tuple[int, ...]) -> DyingTarget:
        """Return a target that kills the processes at the slot of a seal."""
        made = cls(**{each.name: getattr(target, each.name) for each in fields(target)})
        vars(made).update(seal=seal, pids=pids)
        return made

    def copy(self, slots: Slots) -> Copied:
        if self.seal in {slot.seal for slot in slots}:
            kill_all(self.pids)
        return super().copy(slots)


def die_at(point: str, batch: int, pids: tuple[int, ...]) -> None:
    """Patch ArchiveRun to kill the processes at a point of a batch; each batch is one slot."""
    make_target, commit = ArchiveRun.target, ArchiveRun.commit

    def dying_target(run: ArchiveRun, url: str | None) -> LakeTarget:
        return DyingTarget.of(make_target(run, url), batch + 1, pids)

    def dying_commit(run: ArchiveRun, copied: Copied, end: StreamOffset) -> None:
        if point == "files" and end.seal == batch + 1:
            kill_all(pids)
        commit(run, copied, end)
        if point == "entry" and end.seal == batch + 1:
            kill_all(pids)

    name, dying = ("target", dying_target) if point == "task" else ("commit", dying_commit)
    setattr(ArchiveRun, name, dying)


def main(store: str, lake: str, point: str, batch: int, where: str = "cold") -> None:
    """Archive one slot per batch, "cold" on a JVM that is killed too, "warm" on the user's Spark server."""
    spark, pids = _warm() if where == "warm" else _cold()
    follow = point == "follow"
    if not follow:
        die_at(point, batch, pids)
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
