"""Slots to Parquet inside a task.

Message bytes go from the slot file into Arrow and from there into Parquet; Spark sees neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np

from broker.pipeline.faults import SlotDamaged
from broker.pipeline.lake.bad_record import BAD_SCHEMA, BAD_SCHEMA_VERSION, BadRecord, bad_batch
from broker.pipeline.lake.copied import Copied
from broker.pipeline.lake.day_files import DayFiles
from broker.pipeline.lake.disk import Disk
from broker.pipeline.lake.entry import Branch, seal_ranges
from broker.pipeline.source.decoder import batches
from broker.pipeline.source.schema import ARROW_SCHEMA, SCHEMA_VERSION
from broker.pipeline.source.slot_handle import SlotHandle
from broker.pipeline.source.slot_rows import SlotRows
from broker.slot_files.slot_file import BadSlotFile
from broker.slot_files.slot_view import SlotView

__all__ = ["SlotCopy"]


class SlotCopy:
    """Copies slots into a lake's folder, a file per date; inside `with`, what fails leaves no file.

    Invariant: no log names the files yet. Two copies of the same slots have the same rows, under other names.
    """

    def __init__(self, disk: Disk, lake: Path, query: str, open_slot: Callable[[SlotHandle], SlotView]) -> None:
        self._query = query
        self._open = open_slot
        self._messages = DayFiles(disk, lake / "messages" / "data", query, ARROW_SCHEMA, SCHEMA_VERSION)
        self._bad = DayFiles(disk, lake / "bad" / "data", query, BAD_SCHEMA, BAD_SCHEMA_VERSION)
        self._seals: dict[Branch, list[tuple[int, int]]] = {}
        self._slots = self._rows = self._bad_rows = self._slot_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._messages.close()
            self._bad.close()
            self._messages.remove()
            self._bad.remove()

    def copy(self, slot: SlotHandle) -> None:
        """Copy the readable rows of a slot, and note the others as bad. Raises: SlotMissing."""
        self._slots += 1
        self._slot_bytes += slot.bytes
        branch = (slot.store, slot.vhost, slot.queue, slot.incarnation)
        self._seals.setdefault(branch, []).append((slot.seal, slot.seal))
        try:
            rows = SlotRows(self._open(slot))
        except (BadSlotFile, SlotDamaged) as error:
            self._note([self._whole(slot, str(error))])
            return
        bad = rows.bad()
        self._note(self._record(slot, rows, one.position, one.reason, one.raw) for one in bad)
        good: Any = np.delete(np.arange(len(rows.ids)), [one.position for one in bad]) if bad else None
        for batch in batches(rows, rows=good):
            self._rows += batch.num_rows
            for file, part in self._messages.add(batch):
                ids = part.column("offset")
                file.add_ids(slot.vhost, slot.queue, ids[0].as_py(), ids[-1].as_py() + 1, part.num_rows)

    def _note(self, records: Iterable[BadRecord]) -> None:
        for record in records:
            self._bad_rows += record.rows
            for _ in self._bad.add(bad_batch([record])):
                pass

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
        """Write what is left, and return what was written; all of it is on disk then."""
        return Copied(
            files=self._messages.finish(),
            bad_files=self._bad.finish(),
            sealed=seal_ranges(self._seals),
            slots=self._slots,
            rows=self._rows,
            bad=self._bad_rows,
            slot_bytes=self._slot_bytes,
        )
