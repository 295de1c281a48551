"""Copies slots to Parquet inside a task, and says where to.

Message bytes go from the slot file into Arrow and from there into Parquet, not through Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from broker.pipeline.faults import SlotDamaged, said_plainly
from broker.pipeline.lake.bad_record import BAD_SCHEMA, BadRecord, bad_batch
from broker.pipeline.lake.disk import Disk
from broker.pipeline.lake.parquet_file import DayFiles, NewFile
from broker.pipeline.lake.place import LakePlace
from broker.pipeline.options import local_path
from broker.pipeline.source.catalog import open_catalog, open_handle
from broker.pipeline.source.decoder import batches, together
from broker.pipeline.source.schema import ARROW_SCHEMA
from broker.pipeline.source.slot_handle import SlotHandle
from broker.pipeline.source.slot_rows import SlotRows, joined_rows
from broker.slot_files.slot_file import BadSlotFile
from broker.slot_files.slot_view import SlotView

__all__ = ["Branch", "Copied", "LakeTarget", "SlotCopy", "Slots", "absolute"]

URLS: Final = ("http://", "https://")

Branch = tuple[str, str, str, str]  # store, incarnation, vhost and tap
Slots = Sequence[SlotHandle]


@dataclass(frozen=True, slots=True)
class Copied:
    """The report of a task for the commit. Shapes: `seals` has the first and the last seal of each branch."""

    files: tuple[NewFile, ...] = ()
    bad_files: tuple[NewFile, ...] = ()
    seals: Mapping[Branch, tuple[int, int]] = field(default_factory=dict)
    slots: int = 0
    rows: int = 0
    bad: int = 0
    slot_bytes: int = 0

    def __add__(self, other: Copied) -> Copied:
        """Return the sum of both reports."""
        seals = dict(self.seals)
        for branch, (first, last) in other.seals.items():
            held = seals.get(branch, (first, last))
            seals[branch] = (min(held[0], first), max(held[1], last))
        return Copied(
            self.files + other.files,
            self.bad_files + other.bad_files,
            seals,
            self.slots + other.slots,
            self.rows + other.rows,
            self.bad + other.bad,
            self.slot_bytes + other.slot_bytes,
        )


def absolute(slots: str) -> str:
    """Return where slots are, independent of a task's working folder."""
    return slots if slots.startswith(URLS) else str(local_path(slots).absolute())


@dataclass(frozen=True)
class LakeTarget:
    """The lake into which tasks copy slots; it is pickled into them.

    Shapes: `slots` is the broker's data folder or its URL; `skip` holds by vhost and tap the last seal that the lake
        had before the archive; tests set `disk` and `open_slot`.
    """

    lake: LakePlace
    slots: str
    query: str
    skip: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    disk: Disk | None = None
    open_slot: Callable[[SlotHandle], SlotView] | None = None

    def copy(self, slots: Slots) -> Copied:
        """Copy slots, in a task; return the report for the commit. Raises: PipelineFault."""
        with said_plainly():
            wanted = [slot for slot in slots if slot.seal > self.skip.get(slot.vhost, {}).get(slot.queue, 0)]
            if not wanted:
                return Copied()
            with SlotCopy(self.disk or self.lake.disk(), self.lake.root, self.query, self._opening()) as copy:
                copy.copy(sorted(wanted, key=lambda one: (one.vhost, one.queue, one.first)))
                return copy.finish()

    def _opening(self) -> Callable[[SlotHandle], SlotView]:
        if self.open_slot is not None:
            return self.open_slot
        where = {"url" if self.slots.startswith(URLS) else "path": self.slots}
        return partial(open_handle, open_catalog(**where))


class SlotCopy:
    """Copies slots into a lake, one file per date; an exception inside `with` removes the files.

    Invariant: no log names the files yet. Two copies of the same slots have equal rows, under other file names.
    """

    def __init__(self, disk: Disk, lake: Path, query: str, open_slot: Callable[[SlotHandle], SlotView]) -> None:
        self._query = query
        self._open = open_slot
        self._messages = DayFiles(disk, lake / "messages", query, ARROW_SCHEMA)
        self._bad = DayFiles(disk, lake / "bad", query, BAD_SCHEMA)
        self._files = ExitStack()
        self._seals: dict[Branch, tuple[int, int]] = {}
        self._slots = self._rows = self._bad_rows = self._slot_bytes = 0

    def __enter__(self) -> Self:
        self._files.enter_context(self._messages)
        self._files.enter_context(self._bad)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.__exit__(kind, error, trace)

    def copy(self, slots: Iterable[SlotHandle]) -> None:
        """Copy the readable rows of slots, and record the others as bad. Raises: SlotMissing.

        Cost: small slots are decoded together, because a decoding costs a millisecond and 30 KB however few its rows.
        """
        for group in together(slots):
            opened = [self._opened(slot) for slot in group]
            rows = joined_rows([view for view in opened if isinstance(view, SlotView)])
            if rows is not None and len(rows.metas) == len(group):
                self._add(rows)
                continue
            for slot, view in zip(group, opened, strict=True):
                if isinstance(view, SlotView):
                    self._copy(slot, view)
                else:
                    self._note([self._whole(slot, str(view))])

    def _opened(self, slot: SlotHandle) -> SlotView | BadSlotFile | SlotDamaged:
        """Count a slot, and return its view, or why it cannot be read."""
        self._count(slot)
        try:
            return self._open(slot)
        except (BadSlotFile, SlotDamaged) as error:
            return error

    def _count(self, slot: SlotHandle) -> None:
        branch = (slot.store, slot.incarnation or "", slot.vhost, slot.queue)
        first, last = self._seals.get(branch, (slot.seal, slot.seal))
        self._seals[branch] = (min(first, slot.seal), max(last, slot.seal))
        self._slots += 1
        self._slot_bytes += slot.bytes

    def _copy(self, slot: SlotHandle, view: SlotView) -> None:
        try:
            rows = SlotRows(view)
        except BadSlotFile as error:
            self._note([self._whole(slot, str(error))])
            return
        bad = rows.bad()
        self._note(self._record(slot, rows, one.position, one.reason, one.raw) for one in bad)
        self._add(rows, np.delete(np.arange(len(rows.ids)), [one.position for one in bad]) if bad else None)

    def _add(self, rows: SlotRows, good: Any = None) -> None:
        for batch in batches(rows, rows=good):
            self._rows += batch.num_rows
            self._messages.add(batch)
            rows.let_go()

    def _note(self, records: Iterable[BadRecord]) -> None:
        for record in records:
            self._bad_rows += record.rows
            self._bad.add(bad_batch([record]))

    def _whole(self, slot: SlotHandle, reason: str) -> BadRecord:
        ts = (slot.first_ts_ms or 0) * 1000
        place = (slot.store, slot.vhost, slot.queue, slot.first, slot.seal)
        return BadRecord(*place, None, slot.first, slot.count, ts, reason, None, self._query, slot.incarnation or None)

    def _record(self, slot: SlotHandle, rows: SlotRows, position: int, reason: str, raw: bytes) -> BadRecord:
        ts = int(rows.ts_ms[position]) * 1000
        place = (slot.store, slot.vhost, slot.queue, slot.first, slot.seal)
        return BadRecord(
            *place, position, int(rows.ids[position]), 1, ts, reason, raw, self._query, slot.incarnation or None
        )

    def finish(self) -> Copied:
        """Write the remaining rows, and return the report; all files are on disk then."""
        return Copied(
            self._messages.finish(),
            self._bad.finish(),
            self._seals,
            self._slots,
            self._rows,
            self._bad_rows,
            self._slot_bytes,
        )
