"""The batches of an archive: this process plans and commits them, Spark's tasks copy the slots.

This process reads the stream and writes the checkpoint in the format of Spark's streams. So a batch costs one Spark job
and no further Python process, and a killed archive commits nothing afterwards, wherever its tasks run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from broker.pipeline.lake.checkpoint import ArchiveCheckpoint
from broker.pipeline.lake.lake_format import LakeTarget, Written
from broker.pipeline.source.message_run import SlotRun
from broker.pipeline.source.seal_stream import SealStream
from broker.pipeline.source.slot_handle import SlotHandle
from broker.pipeline.source.stream_offset import StreamOffset

__all__ = ["ArchiveBatches", "SlotPlan"]

Slots = Sequence[SlotHandle]
Tasks = Callable[[Callable[[Slots], Written], Sequence[Slots]], list[Written]]


class SlotPlan(SealStream):
    """The stream of slots for planning only; the tasks of an archive open the slots themselves."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Refuse."""
        raise NotImplementedError


class ArchiveBatches:
    """The batches of one run. The run resumes at the checkpoint, with the batch that was planned last."""

    def __init__(
        self,
        checkpoint: ArchiveCheckpoint,
        stream: SlotPlan,
        target: LakeTarget,
        tasks: Tasks,
        begins: Callable[[], StreamOffset],
    ) -> None:
        """Shapes: `tasks` runs a function over items as tasks and returns the results; `begins` is of a new archive."""
        self._checkpoint = checkpoint
        self._stream = stream
        self._target = target
        self._tasks = tasks
        committed = checkpoint.committed()
        self._batch = -1 if committed is None else committed.batch
        self._at: dict[str, Any] = (begins() if committed is None else committed.offset).to_json()

    def take(self) -> bool:
        """Copy and commit the next batch, and return whether there was one. Raises: PipelineFault, exceptions of Spark.

        Invariant: the plan is on disk before a task begins, so that a repeated batch has the same slots; the commit is
            noted after the lake has the batch.
        """
        batch = self._batch + 1
        planned = self._checkpoint.planned_batch(batch)
        end = self._stream.latestOffset(self._at, self._stream.getDefaultReadLimit()) if planned is None else planned
        if end == self._at:
            return False
        if planned is None:
            self._checkpoint.plan(batch, StreamOffset.from_json(end))
        runs = [run.slots for run in self._stream.partitions(self._at, end) if isinstance(run, SlotRun)]
        self._target.commit(self._tasks(self._target.copy, runs), batch)
        self._checkpoint.commit(batch)
        self._batch, self._at = batch, end
        return True
