"""One run of an archive: its start, its batches, the release of slots after each batch, and its totals."""

from __future__ import annotations

import fcntl
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Final

from broker.figures.numerals import many
from broker.pipeline.faults import LakeRefused, SlotGap, TapTaken
from broker.pipeline.lake.lake import ARCHIVES, ArchiveNote, Lake
from broker.pipeline.lake.slot_copy import Copied, LakeTarget, Slots
from broker.pipeline.lake.table import ONE_WRITER, LakeBatch
from broker.pipeline.lake.tap_cursors import TapCursors, TapName
from broker.pipeline.options import now_ms
from broker.pipeline.source.catalog import Catalog
from broker.pipeline.source.message_run import SlotRun
from broker.pipeline.source.seal_stream import SealStream, StreamOffset, parted_text
from broker.slot_files.seal_log import Gap
from broker.slot_files.seal_view import GAPS_MAX, Lag

RELEASE_AGAIN_S: Final = 2.0
GAPS_SHOWN: Final = 3
COMPACT_FILES: Final = 100
COMPACT_BYTES: Final = 32_000_000
BAD_MIN: Final = 10  # a share above 0% allows at least this many, because one message is a large share of a small batch
SHARE: Final = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%")
KEEP_HOURS: Final = 6  # how long replaced files are kept for readers

Tasks = Callable[[Callable[[Slots], Copied], Sequence[Slots]], list[Copied]]


@dataclass(slots=True)
class Totals:
    """The totals of a run. Shapes: `lag` is None before it is measured; `gaps` counts the gaps found at the start."""

    batches: int = 0
    files: int = 0
    slots: int = 0
    rows: int = 0
    bad: int = 0
    slot_bytes: int = 0
    lake_bytes: int = 0
    lag: Lag | None = None
    seal: int = 0
    gaps: int = 0
    gap_messages: int = 0

    def count(self, copied: Copied) -> None:
        self.batches += 1
        for name, number in copied.figures().items():
            setattr(self, name, getattr(self, name) + number)


class ArchiveRun:
    """A running archive. From `begin` to `end` it holds a lock on its cursor and lake."""

    def __init__(
        self,
        lake: Lake,
        catalog: Catalog,
        cursor: str,
        *,
        vhost: str | None = None,
        taps: Sequence[str] = (),
        max_bad: str = "0.1%",
        say: Callable[[str], None] = lambda _line: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lake = lake
        self.totals = Totals()
        self.cursors = TapCursors(catalog, cursor, vhost=vhost, taps=taps, say=say)
        self._catalog = catalog
        self._cursor = cursor
        self._vhost = vhost
        self._taps = tuple(sorted(taps))
        self._max_bad = max_bad
        self._bad_limit = bad_limit(max_bad)
        self._lock: int | None = None  # the descriptor of the locked file; the lock ends with the process
        self.note: ArchiveNote  # set by `begin`
        self._at = StreamOffset("", 0)  # the lake has everything up to this offset
        self._has_batch = False
        self._interrupted: StreamOffset | None = None  # the end of a batch of which the lake has only the bad records
        self._begins: dict[TapName, int] = {}  # the seal after which the archive begins in each tap
        self._gaps_before = 0  # the seal of the last gap known before the first batch
        self._say = say
        self._clock_s = clock_s
        self._released = -1  # the last seal reported to the broker
        self._compacted: int | None = None  # `totals.files` at the last compaction
        self._release_at_s = 0.0  # when to retry after the broker did not answer

    def begin(self, *, allow_gap: bool = False, accept_restored: bool = False, take_over: bool = False) -> None:
        """Start a new archive, or resume an existing one.

        `allow_gap` accepts that messages are lost, `take_over` that another archive has written slots of the taps, and
        `accept_restored` that the data folder was restored from a copy. In the last two cases the archive continues
        after the slots that are in the lake.
        Raises: LakeRefused, TapTaken, SlotGap, SourceRefused.
        """
        if not self._lock_cursor():
            raise LakeRefused(f"an archive with the cursor {self._cursor!r} already runs on {self.lake.place}")
        try:
            self._begin(allow_gap=allow_gap, accept_restored=accept_restored, take_over=take_over)
        except BaseException:
            self.end()
            raise

    def _lock_cursor(self) -> bool:
        path = self.lake.place.work_folder / ARCHIVES / f"{self._cursor}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    def _begin(self, *, allow_gap: bool, accept_restored: bool, take_over: bool) -> None:
        store = self._catalog.view().store
        self.cursors.check_rights()
        note = self.lake.note(self._cursor)
        if note is not None:
            self._check(note, store)
            at = self.lake.position(note)
            self._has_batch, self._at = at is not None, at or note.start
            self._interrupted = self.lake.interrupted(note, self._at)
            if why := self._superseded(note, accept_restored=accept_restored, take_over=take_over):
                self._say(f"{why}: the archive continues after what the lake has")
                note = None
        if note is None:
            note = self._new(store, allow_gap=allow_gap, accept_restored=accept_restored)
            self._has_batch, self._at, self._interrupted = False, note.start, None
        else:
            note = self._resumed(note, allow_gap=allow_gap)
        self.note = note
        if self.lake.place.folder is not None:  # the lock does not exclude another machine that writes to a bucket
            for table in (self.lake.message_table, self.lake.bad_table):
                table.sweep(note.query)
        self.totals.seal = self._at.seal
        self._release()

    def _new(self, store: str, *, allow_gap: bool, accept_restored: bool) -> ArchiveNote:
        """Check for gaps before the first batch of a new archive, and write and return its note."""
        archived = self._archived(store, accept_restored=accept_restored)
        self._check_first(archived, allow_gap)
        skip: dict[str, dict[str, int]] = {}
        for (vhost, tap), seal in archived.items():
            skip.setdefault(vhost, {})[tap] = seal
        for (vhost, tap), seal in sorted(self._begins.items()):
            if seal and (vhost, tap) not in archived:
                self._say(f"tap {tap!r} of vhost {vhost!r} is archived after seal {seal}: earlier slots are removed")
        seal = min(self._begins.values(), default=0)
        start = StreamOffset.at(self._catalog.view(), seal, gaps=self._gaps_before)
        return self.lake.write_note(self._cursor, ArchiveNote(uuid.uuid4().hex, self._vhost, self._taps, skip, start))

    def _resumed(self, note: ArchiveNote, *, allow_gap: bool) -> ArchiveNote:
        """Check for gaps after the position of an existing archive, and return its note."""
        at = self._at
        if self._has_batch:
            self._check_gaps([gap for gap in self.cursors.lost(at.seal) if gap.seal > at.gaps], allow_gap)
            return note
        before = {(vhost, tap): seal for vhost, taps in note.skip.items() for tap, seal in taps.items()}
        self._check_first(before, allow_gap)
        self._at = replace(at, gaps=self._gaps_before)
        return note if self._at == note.start else self.lake.write_note(self._cursor, replace(note, start=self._at))

    def _check_first(self, archived: Mapping[TapName, int], allow_gap: bool) -> None:
        """Record the seal after which the archive begins in each tap, and check for gaps before its first batch.

        Invariant: no gap is overlooked, because the stream checks all gaps after `_gaps_before`.
        """
        self._begins = self.cursors.begins(archived)
        self._gaps_before = max((gap.seal for gap in self.cursors.lost(0)), default=0)
        self._check_gaps(self.cursors.lost_before(archived), allow_gap)

    def _check(self, note: ArchiveNote, store: str) -> None:
        archive = f"the archive {self._cursor!r} in {self.lake.place}"
        if note.start.store != store:
            raise LakeRefused(
                f"{archive} is of store {note.start.store}, and {self._catalog.address} is store {store}: "
                "another store needs another --cursor"
            )
        if (note.vhost, note.taps) != (self._vhost, self._taps):
            raise LakeRefused(
                f"{archive} is of {_chosen(note.vhost, note.taps)}, "
                f"not of {_chosen(self._vhost, self._taps)}: another choice of taps needs another --cursor"
            )

    def _superseded(self, note: ArchiveNote, *, accept_restored: bool, take_over: bool) -> str:
        """Return why an archive cannot resume from its position, or "" if it can. Raises: LakeRefused, TapTaken."""
        view, at = self._catalog.view(), self._at
        for offset in filter(None, (at, self._interrupted)):
            if view.diverged(offset.seal, offset.incarnation):
                if accept_restored:
                    return "a copy of the data folder was put back"
                raise LakeRefused(self._parted(offset.seal))
        for (vhost, tap), taken in sorted(self._taken(note.start.store).items()):
            if self.cursors.selects(vhost, tap) and taken > max(at.seal, note.skip.get(vhost, {}).get(tap, 0)):
                if take_over:
                    return "another archive has archived some of the taps further"
                raise TapTaken(
                    f"the lake has tap {tap!r} of vhost {vhost!r} up to seal {taken} already, and this archive took it "
                    f"up to seal {at.seal}: {ONE_WRITER}"
                )
        return ""

    def _taken(self, store: str) -> dict[TapName, int]:
        """Return, for each tap in the lake, the last seal that belongs to the store's current history."""
        view = self._catalog.view()
        return {
            tap: max(view.last_shared(seal, incarnation) for incarnation, seal in starts.items())
            for tap, starts in self.lake.archived(store).items()
        }

    def _archived(self, store: str, *, accept_restored: bool) -> dict[TapName, int]:
        """Return the result of `_taken`. Raises: LakeRefused if the lake has another history that is not accepted."""
        view = self._catalog.view()
        for tap, starts in self.lake.archived(store).items():
            for incarnation, seal in starts.items():
                if self.cursors.selects(*tap) and view.diverged(seal, incarnation) and not accept_restored:
                    raise LakeRefused(self._parted(seal))
        return self._taken(store)

    def _parted(self, seal: int) -> str:
        """Return the error text for a seal in the lake that is not in the store's current history."""
        return parted_text(f"the lake {self.lake.place}", self._catalog.address, seal, self._catalog.view())

    def _check_gaps(self, gaps: Sequence[Gap], allow_gap: bool) -> None:
        self.totals.gaps = len(gaps)
        self.totals.gap_messages = sum(gap.count for gap in gaps)
        if gaps and not allow_gap:
            raise SlotGap(f"{self._gap_text(gaps)}; --allow-gap continues without them")

    def _gap_text(self, gaps: Sequence[Gap]) -> str:
        """Describe the missing messages and name the first missing slots."""
        slots = [gap for gap in gaps if gap.reason != "released"]
        least = "at least " if len(slots) < len(gaps) or len(self._catalog.view().gaps) >= GAPS_MAX else ""
        known = f"{least}{many(len(slots), 'slot')} with {many(sum(gap.count for gap in slots), 'message')}"
        named = ", ".join(
            f"slot {gap.seal} of tap {gap.queue!r} ({many(gap.count, 'message')})"
            if gap in slots
            else f"all slots of tap {gap.queue!r} up to seal {gap.seal}"
            for gap in gaps[:GAPS_SHOWN]
        )
        more = f" and {len(gaps) - GAPS_SHOWN:,} more" if len(gaps) > GAPS_SHOWN else ""
        total = known if slots else "an unknown number of messages"
        return f"{total} had disappeared before they were archived: {named}{more}"

    def target(self, url: str | None = None) -> LakeTarget:
        """Return the target for tasks, which read slots from the broker at `url` or from the catalog's folder."""
        path = self._catalog.address if url is None else None
        return LakeTarget(self.lake.place, self.note.query, path, url, self.note.skip)

    def copy_batch(self, stream: SealStream, target: LakeTarget, tasks: Tasks) -> bool:
        """Copy and commit the next batch; return whether there was one. Raises: PipelineFault, exceptions of Spark.

        Shapes: `tasks` calls a function for each item in a task of its own, and returns the results.
        Invariant: if the lake has only the bad records of a batch, the batch is repeated with the same slots.
        """
        begin = self._at.to_json()
        interrupted = self._interrupted
        end = stream.latestOffset(begin, stream.getDefaultReadLimit()) if interrupted is None else interrupted.to_json()
        if end == begin:
            return False
        runs = [run.slots for run in stream.partitions(begin, end) if isinstance(run, SlotRun)]
        self.commit(sum(tasks(target.copy, runs), Copied()), StreamOffset.from_json(end))
        return True

    def commit(self, copied: Copied, end: StreamOffset) -> None:
        """Add a batch and the archive's new position to the lake, or discard the batch.

        Raises: LakeRefused, for example if too many messages are unreadable; TapTaken.
        """
        batch = LakeBatch(self.note.query, end.seal, end.incarnation, copied)
        if copied.bad > self._bad_limit(copied.rows + copied.bad):
            self.lake.discard(batch)
            raise LakeRefused(
                f"{copied.bad:,} of {copied.rows + copied.bad:,} messages cannot be read, "
                f"more than {self._max_bad}: none of the batch was archived"
            )
        self.lake.commit(batch)
        self._has_batch, self._at, self._interrupted = True, end, None
        self.totals.count(copied)
        self.totals.seal = end.seal

    def release_slots(self) -> Totals:
        """Release the slots of the committed batches if the broker answers, and return the totals."""
        totals = self.totals
        if totals.seal != self._released and self._clock_s() >= self._release_at_s:
            self._release()
        totals.lag = self.cursors.lag(totals.seal, now_ms())
        return totals

    def _release(self) -> None:
        if self.cursors.release(self._at.seal, self._at.incarnation, {} if self._has_batch else self._begins):
            self._released = self._at.seal
        else:
            self._release_at_s = self._clock_s() + RELEASE_AGAIN_S

    def maintain(self) -> None:
        """Compact small files once there are many, and remove files that were replaced hours ago.

        A batch every five seconds would leave 17,000 files a day.
        """
        if self._compacted is None:
            self._compacted = self.totals.files - sum(file.bytes < COMPACT_BYTES // 2 for file in self.lake.files())
        if self.totals.files - self._compacted < COMPACT_FILES:
            return
        self._compacted = self.totals.files
        try:
            self.lake.compact(COMPACT_BYTES)
            self.lake.vacuum(KEEP_HOURS)
        except LakeRefused as refused:
            self._say(f"small files are not merged for now: {refused}")

    def withdraw(self) -> None:
        """Remove the cursors that this run created, unless the lake has a batch of the archive."""
        if not self._has_batch:
            self.cursors.withdraw()

    def end(self) -> None:
        """Release the lock, so that another run can start."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def values(self) -> dict[str, Any]:
        place = {"lake": str(self.lake.place), "store": self.note.start.store, "cursor": self._cursor}
        found = asdict(self.totals)
        del found["files"], found["lag"]
        return {**place, **found, **(self.totals.lag or {})}


def bad_limit(text: str) -> Callable[[int], Fraction]:
    """Return a function that maps a number of messages to the number of them that may be unreadable.

    Shapes: `text` is a number, such as 5, or a share, such as 0.1%. Raises: LakeRefused.
    """
    text = text.strip()
    percent = SHARE.fullmatch(text)
    if percent is not None and (share := Fraction(percent[1]) / 100) <= 1:
        minimum = Fraction(BAD_MIN if share else 0)
        return lambda messages: max(minimum, share * messages)
    if text.isascii() and text.isdigit():
        return lambda _messages: Fraction(text)
    raise LakeRefused(f"{text!r} is neither a number of messages nor a share such as 0.1%")


def _chosen(vhost: str | None, taps: Sequence[str]) -> str:
    named = f"tap {', '.join(taps)}" if taps else "all taps"
    return named if vhost is None else f"{named} in vhost {vhost!r}"
