"""Read slots as they are sealed: the stream of both formats, and its offset, which Spark stores in the checkpoint.

{"v": 2, "store": 32 hex digits, "seal": n, "incarnation": 32 hex digits}   everything up to seal n was read
"incarnation"  the run of the broker that wrote the seal
"slots": k     optional: the number of slots in the batch that ends at this offset
"gaps": m      optional: gaps up to seal m existed when the stream began, so the stream did not lose them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from broker.pipeline.faults import SourceRefused, without_worker_trace
from broker.pipeline.source.options import TRIGGER_MAX_BYTES
from broker.pipeline.source.planner import BatchLimits, admitted
from broker.pipeline.source.slot_handle import SlotHandle
from broker.pipeline.source.slot_source import SlotSource, lost_since, refuse_gaps
from broker.slot_files.seal_log import Gap
from broker.slot_files.seal_view import SealView

VERSION: Final = 2
UNLIMITED = BatchLimits()
RowReader = Callable[[InputPartition], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """An offset of a stream."""

    store: str
    seal: int
    slots: int | None = None
    gaps: int = 0
    incarnation: str = ""

    @classmethod
    def at(cls, view: SealView, seal: int, slots: int | None = None, gaps: int = 0) -> Self:
        """Return the offset at a seal of the current seal log."""
        return cls(view.store, seal, slots, gaps, view.starts.of(seal))

    def to_json(self) -> dict[str, Any]:
        found = {"v": VERSION, "store": self.store, "seal": self.seal, "incarnation": self.incarnation}
        if self.slots is not None:
            found["slots"] = self.slots
        if self.gaps > self.seal:
            found["gaps"] = self.gaps
        return found

    @classmethod
    def from_json(cls, found: Any) -> Self:
        """Return the offset that a checkpoint describes. Raises: SourceRefused."""
        version = found.get("v") if isinstance(found, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise SourceRefused(
                f"the checkpoint was written by a later SlotMQ: its offsets are of version {version}, "
                f"this one reads up to version {VERSION}"
            )
        try:
            if version != VERSION:
                raise ValueError
            slots = found.get("slots")
            return cls(
                str(found["store"]),
                int(found["seal"]),
                None if slots is None else int(slots),
                int(found.get("gaps", 0)),
                str(found["incarnation"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError):  # int(Infinity), which Python reads from JSON
            raise SourceRefused(f"the checkpoint has an offset that is none of SlotMQ's: {found!r}") from None

    def check(self, view: SealView, address: str) -> None:
        """Raise SourceRefused if the offset is of another store, or of another history of this store."""
        if self.store != view.store:
            raise SourceRefused(
                f"the checkpoint belongs to store {self.store}, but {address} has store {view.store}: "
                "use the data folder that it was made with, or a new checkpoint"
            )
        if view.diverged(self.seal, self.incarnation):
            raise SourceRefused(parted_text("the checkpoint", address, self.seal, view))


def parted_text(reader: str, address: str, seal: int, view: SealView) -> str:
    """Return why a reader cannot resume after a seal that is not in this history of the store."""
    found = f"has sealed {view.last_seal} only" if seal > view.last_seal else "has another slot under that number"
    return (
        f"{reader} is at seal {seal}, but {address} {found}: was an older copy of the data folder put back? "
        "Nothing is read or released; an archive takes both histories with --accept-restored, "
        "a stream with a new checkpoint"
    )


class SealStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of slots in the order of their seals.

    Spark keeps one instance for the life of a query, and pickles the stream into tasks.
    There is no commit() that releases slots, because Spark does not call it for the last batch. Readers that release
    slots with a cursor read the checkpoint or the query's progress instead.
    """

    def __init__(self, options: Mapping[str, str], rows: RowReader | None = None) -> None:
        """Keep the options. Shapes: `rows` yields the rows of a run of slots; without it, the stream can only plan."""
        self._options = dict(options)
        self._rows = rows
        self._slot_source: SlotSource | None = None
        self._target: int | None = None  # the last seal of a query that reads only the current slots

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_slot_source": None}

    @property
    def _source(self) -> SlotSource:
        if self._slot_source is None:
            source = SlotSource(self._options)
            if source.options.queues:
                raise SourceRefused(
                    f"{source.options.description()} cannot be followed: a stream reads a tap (slotmq tap add), "
                    "a queue is read once, by a snapshot"
                )
            self._slot_source = source
        return self._slot_source

    # ---- offsets

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which a new stream begins. Raises: SlotGap, SourceRefused."""
        with without_worker_trace():
            source = self._source
            view = source.catalog.view()
            source.check_taps(view)
            begin = source.options.begin
            if begin.kind == "seal":
                return StreamOffset.at(view, max(begin.value - 1, 0)).to_json()
            if source.options.fail_on_gap:
                lost = lost_since(view, begin, source.options.selects, source.options.end)
                refuse_gaps(lost, self._description())
            first = None if begin.kind == "latest" else next(source.after(view, 0), None)
            seal = view.last_seal if first is None else first.seal - 1
            lost_seal = max((gap.seal for gap in self._lost(view, seal)), default=0)
            return StreamOffset.at(view, seal, gaps=lost_seal).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch, or `start` if nothing is new. Raises: SlotGap, SourceRefused."""
        with without_worker_trace():
            source = self._source
            begin, view = self._checked(start)
            limits = UNLIMITED if isinstance(limit, ReadAllAvailable) else source.options.limits
            slots = admitted(source.after(view, begin.seal, self._target), limits)
            if not slots:
                return start
            if source.options.fail_on_gap:
                lost = [gap for gap in self._lost(view, begin.seal) if gap.seal > begin.gaps]
                refuse_gaps(lost, self._description(begin.seal))
            source.catalog.note_read({(slot.vhost, slot.queue) for slot in slots})
            return StreamOffset.at(view, slots[-1].seal, len(slots), begin.gaps).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit in bytes. Spark supports only one limit, so latestOffset() applies all of them."""
        with without_worker_trace():
            return ReadMaxBytes(self._source.options.limits.bytes or TRIGGER_MAX_BYTES)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the offset of the last seal, for the query's progress."""
        with without_worker_trace():
            view = self._source.catalog.view()
            return StreamOffset.at(view, view.last_seal).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the current last seal the end of the query."""
        with without_worker_trace():
            source = self._source
            if source.options.seal_now:
                source.seal_now()
            self._target = source.catalog.view().last_seal

    # ---- the slots of a batch

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the slots between two offsets, split into tasks. Raises: SlotGap, SourceRefused.

        Invariant: with failOnGap, a batch that is planned again has as many slots as before, or is refused.
        """
        with without_worker_trace():
            source = self._source
            begin, view = self._checked(start)
            last = self._checked(end)[0]
            slots = list(source.after(view, begin.seal, last.seal))
            if source.options.fail_on_gap:
                self._check_batch(view, begin, last, slots)
            return source.tasks(slots, self._description(begin.seal))

    def _check_batch(self, view: SealView, begin: StreamOffset, last: StreamOffset, slots: list[SlotHandle]) -> None:
        if last.slots is None or last.slots == len(slots) or last.seal == begin.seal:
            return
        change = (
            f"the batch up to seal {last.seal} had {last.slots} slots when it was planned, and has {len(slots)} now"
        )
        refuse_gaps([gap for gap in self._lost(view, begin.seal) if gap.seal > begin.gaps], change)
        raise SourceRefused(f"{change}: the options of a stream with a checkpoint must not change")

    def _checked(self, offset: dict[str, Any]) -> tuple[StreamOffset, SealView]:
        """Return the parsed offset and the current view. Raises: SourceRefused for an offset of another history."""
        found = StreamOffset.from_json(offset)
        view = self._source.catalog.view()
        found.check(view, self._source.catalog.address)
        return found, view

    def _lost(self, view: SealView, after: int) -> list[Gap]:
        selects = self._source.options.selects
        return [gap for gap in view.lost(after) if selects(gap.vhost, gap.queue)]

    def _description(self, seal: int | None = None) -> str:
        description = self._source.options.description()
        return f"a stream of {description}" if seal is None else f"a stream of {description} after seal {seal}"

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert self._rows is not None
        return self._rows(partition)

    def stop(self) -> None:
        if self._slot_source is not None:
            self._slot_source.catalog.close()
