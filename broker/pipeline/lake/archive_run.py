"""One run of an archive, without Spark: its start, the release of slots after each batch, and its totals."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.pipeline.faults import LakeRefused, SlotGap, TapTaken
from broker.pipeline.lake.bad_record import BadShare
from broker.pipeline.lake.checkpoint import ArchiveCheckpoint, ArchiveNote, Committed
from broker.pipeline.lake.disk import Disk
from broker.pipeline.lake.folder_lock import FolderLock
from broker.pipeline.lake.instant import now_ms
from broker.pipeline.lake.lake import Lake
from broker.pipeline.lake.lake_format import LakeTarget, absolute
from broker.pipeline.lake.table import ONE_ONLY
from broker.pipeline.lake.tap_cursors import TapCursors, TapName
from broker.pipeline.source.catalog import Catalog
from broker.pipeline.source.stream_offset import StreamOffset, parted_text
from broker.slot_files.cursor_lag import Lag
from broker.slot_files.seal_log import Gap
from broker.slot_files.seal_view import GAPS_MAX

__all__ = ["ArchiveRun", "Totals"]

CHECKPOINTS: Final = "_checkpoints"
RELEASE_AGAIN_S: Final = 2.0
GAPS_TOLD: Final = 3
TENDED_FILES: Final = 100
TENDED_BYTES: Final = 32_000_000
KEEP_HOURS: Final = 6  # for readers of replaced files


@dataclass(slots=True)
class Totals:
    """The totals of a run so far."""

    batches: int = 0
    files: int = 0
    slots: int = 0
    rows: int = 0
    bad: int = 0
    slot_bytes: int = 0
    lake_bytes: int = 0
    lag: Lag | None = None  # of its cursors; None before the first measurement
    seal: int = 0
    gaps: int = 0  # before the run
    gap_messages: int = 0


class ArchiveRun:
    """A running archive: it holds the lock of its checkpoint from `begin` to `end`."""

    def __init__(
        self,
        lake: Lake,
        catalog: Catalog,
        cursor: str,
        *,
        vhost: str | None = None,
        taps: Sequence[str] = (),
        say: Callable[[str], None] = lambda _line: None,
        disk: Disk | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lake = lake
        self.totals = Totals()
        self.cursors = TapCursors(catalog, cursor, vhost=vhost, taps=taps, say=say)
        folder = lake.work_folder / CHECKPOINTS / cursor
        self.checkpoint = ArchiveCheckpoint(folder, disk or Disk())
        self._lock = FolderLock(folder.with_name(f"{cursor}.lock"))
        self._catalog = catalog
        self._cursor = cursor
        self._vhost = vhost
        self._taps = tuple(sorted(taps))
        self._batch = -1  # the last counted batch
        self._note: ArchiveNote | None = None
        self._begins: dict[TapName, int] = {}  # the seal after which a new archive begins in each tap
        self._gone = 0  # the last gap before a new archive
        self._say = say
        self._clock_s = clock_s
        self._incarnation: str | None = None  # of the start that wrote the seal at the archive's position
        self._released = -1  # the last seal reported to the broker
        self._tended: int | None = None  # the number of files after the last compaction
        self._release_at_s = 0.0  # when to retry after the broker did not answer

    @property
    def note(self) -> ArchiveNote:
        """The note of the archive."""
        assert self._note is not None
        return self._note

    def begin(self, *, allow_gap: bool = False, accept_restored: bool = False, take_over: bool = False) -> ArchiveNote:
        """Return the archive's note, new or resumed, after sweeping the partial work of earlier runs.

        If a power loss damaged the checkpoint, the archive starts anew after the last seal of each tap in the lake.
        With `take_over` it does so, too, if another archive has archived slots of its taps.
        Raises: LakeRefused when the archive already runs, belongs to another store or other taps, or when the history
            of the data folder differs from the archived one and that is not accepted; TapTaken; SlotGap.
        """
        if not self._lock.take():
            raise LakeRefused(f"an archive with the cursor {self._cursor!r} works on {self.lake.place} already")
        try:
            return self._begin(allow_gap=allow_gap, accept_restored=accept_restored, take_over=take_over)
        except BaseException:
            self._lock.release()
            raise

    def _begin(self, *, allow_gap: bool, accept_restored: bool, take_over: bool) -> ArchiveNote:
        store = self._catalog.store
        self.cursors.check_rights()
        note = self.checkpoint.note()
        if note is not None:
            self._check(note, store)
            if why := self._useless(note, accept_restored=accept_restored, take_over=take_over):
                aside = self.checkpoint.set_aside()
                self._say(f"{why}: the archive goes on behind what the lake has; the old checkpoint is kept as {aside}")
                note = None
        if note is None:
            note = self._new(store, allow_gap=allow_gap, accept_restored=accept_restored)
        else:
            self._resume(note, allow_gap=allow_gap)
        self._note = note
        for table in (self.lake.message_table, self.lake.bad_table):
            table.sweep(note.query)
        committed = self.checkpoint.committed()
        self._batch = -1 if committed is None else committed.batch
        self._stand(note, committed)
        self._release()
        return note

    def _new(self, store: str, *, allow_gap: bool, accept_restored: bool) -> ArchiveNote:
        """Return the note of a new archive, once nothing is missing before its first batch."""
        archived = self._archived(store, accept_restored=accept_restored)
        self._check_first(archived, allow_gap)
        skip: dict[str, dict[str, int]] = {}
        for (vhost, tap), seal in archived.items():
            skip.setdefault(vhost, {})[tap] = seal
        for (vhost, tap), seal in sorted(self._begins.items()):
            if seal and (vhost, tap) not in archived:
                self._say(f"tap {tap!r} of vhost {vhost!r} is archived after seal {seal}: earlier slots are removed")
        start = min(self._begins.values(), default=0)
        starts = self._catalog.view().starts
        return self.checkpoint.begin(store, vhost=self._vhost, taps=self._taps, start=start, skip=skip, starts=starts)

    def _resume(self, note: ArchiveNote, *, allow_gap: bool) -> None:
        """Check that an archive can resume from its checkpoint."""
        if parted := self._parted(note):
            raise LakeRefused(parted)
        committed = self.checkpoint.committed()
        if committed is None:
            self._check_first(_archived_before(note), allow_gap)
        else:
            offset = committed.offset
            self._check_gaps([gap for gap in self.cursors.lost(offset.seal) if gap.seal > offset.gaps], allow_gap)

    def _check_first(self, archived: Mapping[TapName, int], allow_gap: bool) -> None:
        """Check that nothing is missing before the first batch, and note where it begins in each tap.

        Invariant: a gap that is made meanwhile is among those checked here, or is refused by the stream.
        """
        self._begins = self.cursors.begins(archived)
        self._gone = max((gap.seal for gap in self.cursors.lost(0)), default=0)
        self._check_gaps(self.cursors.lost_before(archived), allow_gap)

    def _check(self, note: ArchiveNote, store: str) -> None:
        folder = self.checkpoint.folder
        if note.store != store:
            raise LakeRefused(
                f"the checkpoint {folder} is of store {note.store}, and {self._catalog.address} is store {store}: "
                "another store needs another --cursor"
            )
        if (note.vhost, note.taps) != (self._vhost, self._taps):
            raise LakeRefused(
                f"the checkpoint {folder} is of {_chosen(note.vhost, note.taps)}, "
                f"not of {_chosen(self._vhost, self._taps)}: another choice of taps needs another --cursor"
            )

    def _useless(self, note: ArchiveNote, *, accept_restored: bool, take_over: bool) -> str:
        """Return why the archive starts anew instead of resuming from its checkpoint, empty if it resumes."""
        held = self.lake.message_table.last_batch(note.query)
        if damage := self.checkpoint.damage(held):
            return f"the checkpoint {self.checkpoint.folder} was damaged, as by a power loss ({damage})"
        if accept_restored and self._parted(note):
            return "a copy of the data folder was put back"
        committed = self.checkpoint.committed()
        if committed is not None and held < committed.batch:
            raise LakeRefused(
                f"{self.lake.place} has batch {held} of the archive as its last, and the checkpoint "
                f"{self.checkpoint.folder} has {committed.batch}: was an older copy of the lake put back? "
                "Its slots may be released; remove the checkpoint to go on behind what the lake has"
            )
        own = self.checkpoint.planned() if held > (-1 if committed is None else committed.batch) else None
        seal = max(note.start if committed is None else committed.offset.seal, 0 if own is None else own.seal)
        for (vhost, tap), taken in sorted(self._taken(note.store).items()):
            if self.cursors.wants(vhost, tap) and taken > max(seal, note.skip.get(vhost, {}).get(tap, 0)):
                if take_over:
                    return "another archive took some of the taps further"
                raise TapTaken(
                    f"the lake has tap {tap!r} of vhost {vhost!r} up to seal {taken} already, and this archive took it "
                    f"up to seal {seal}: {ONE_ONLY}"
                )
        return ""

    def _taken(self, store: str) -> dict[TapName, int]:
        """Return the last seal of each tap in the lake, in the store's current history."""
        view = self._catalog.view()
        return {
            tap: max(view.shared(seal, incarnation) for incarnation, seal in starts.items())
            for tap, starts in self.lake.archived(store).items()
        }

    def _stand(self, note: ArchiveNote, committed: Committed | None) -> None:
        """Set the archive's position."""
        offset = None if committed is None else committed.offset
        self.totals.seal = note.start if offset is None else offset.seal
        self._incarnation = self._catalog.view().starts.of(note.start) if offset is None else offset.incarnation

    def _parted(self, note: ArchiveNote) -> str:
        """Return why the archive cannot resume in the store's current history, empty if it can."""
        view = self._catalog.view()
        committed = self.checkpoint.committed()
        offsets = [self.checkpoint.planned(), None if committed is None else committed.offset]
        places = [(offset.seal, offset.incarnation) for offset in offsets if offset is not None]
        for offset in offsets:
            if offset is not None and offset.store != note.store:
                raise LakeRefused(f"{self.checkpoint.folder} is of store {offset.store}, not {note.store}")
        for seal, incarnation in places or [(note.passed, note.incarnation)]:
            if view.parted(seal, incarnation):
                return parted_text(f"the checkpoint {self.checkpoint.folder}", self._catalog.address, seal, view)
        return ""

    def _archived(self, store: str, *, accept_restored: bool) -> dict[tuple[str, str], int]:
        """Return the last archived seal of each tap in the store's current history. Raises: LakeRefused."""
        view = self._catalog.view()
        for tap, starts in self.lake.archived(store).items():
            for incarnation, seal in starts.items():
                if self.cursors.wants(*tap) and view.parted(seal, incarnation) and not accept_restored:
                    raise LakeRefused(parted_text(f"the lake {self.lake.place}", self._catalog.address, seal, view))
        return self._taken(store)

    def _check_gaps(self, gaps: Sequence[Gap], allow_gap: bool) -> None:
        self.totals.gaps = len(gaps)
        self.totals.gap_messages = sum(gap.count for gap in gaps)
        if gaps and not allow_gap:
            raise SlotGap(f"{self._told(gaps)}; --allow-gap goes on without them")

    def _told(self, gaps: Sequence[Gap]) -> str:
        """Return how much is missing, and the first of the missing slots."""
        slots = [gap for gap in gaps if gap.reason != "released"]
        least = "at least " if len(slots) < len(gaps) or len(self._catalog.view().gaps) >= GAPS_MAX else ""
        many = f"{least}{_some(len(slots), 'slot')} with {_some(sum(gap.count for gap in slots), 'message')}"
        named = ", ".join(
            f"slot {gap.seal} of tap {gap.queue!r} ({_some(gap.count, 'message')})"
            if gap in slots
            else f"all slots of tap {gap.queue!r} up to seal {gap.seal}"
            for gap in gaps[:GAPS_TOLD]
        )
        more = f" and {len(gaps) - GAPS_TOLD:,} more" if len(gaps) > GAPS_TOLD else ""
        total = many if slots else "an unknown number of messages"
        return f"{total} went before they were archived: {named}{more}"

    def begins(self) -> StreamOffset:
        """Return where a new archive begins."""
        return StreamOffset.at(self._catalog.view(), self.note.start, gaps=self._gone)

    def target(self, slots: str, max_bad: str) -> LakeTarget:
        """Return the target that copies and commits the slots. Shapes: `slots` is a data folder or a URL."""
        return LakeTarget(
            lake=self.lake.place,
            slots=absolute(slots),
            query=self.note.query,
            max_bad=BadShare.parse(max_bad),
            skip={self.note.store: self.note.skip},
        )

    def step(self) -> Totals:
        """Count the batches committed since the last call, release their slots, and return the totals."""
        committed = self.checkpoint.committed()
        totals = self.totals
        if committed is not None and committed.batch > self._batch:
            self._count(range(self._batch + 1, committed.batch + 1))
            self._batch = committed.batch
            self._stand(self.note, committed)
        if totals.seal != self._released and self._clock_s() >= self._release_at_s:
            self._release()
        totals.lag = self.cursors.lag(totals.seal, now_ms())
        return totals

    def _release(self) -> None:
        if self.cursors.release(self.totals.seal, self._incarnation, self._begins if self._batch < 0 else {}):
            self._released = self.totals.seal
        else:
            self._release_at_s = self._clock_s() + RELEASE_AGAIN_S

    def _count(self, batches: range) -> None:
        totals = self.totals
        totals.batches += len(batches)
        for facts in self.lake.message_table.facts(self.note.query, batches):
            for name in ("files", "slots", "rows", "bad", "slot_bytes", "lake_bytes"):
                setattr(totals, name, getattr(totals, name) + facts[name])

    def tend(self) -> None:
        """Compact small files once there are many, and remove files that were replaced some hours ago.

        A batch every five seconds would leave 17,000 files a day.
        """
        if self._tended is None:
            self._tended = self.totals.files - sum(file.bytes < TENDED_BYTES // 2 for file in self.lake.files())
        if self.totals.files - self._tended < TENDED_FILES:
            return
        self._tended = self.totals.files
        try:
            self.lake.compact(TENDED_BYTES)
            self.lake.vacuum(KEEP_HOURS)
        except LakeRefused as refused:
            self._say(f"small files are not put together for now: {refused}")

    def withdraw(self) -> None:
        """Remove the cursors that this run created, if the lake has nothing of the archive: it was refused."""
        if self._note is not None and self.lake.message_table.last_batch(self._note.query) < 0:
            self.cursors.withdraw()

    def end(self) -> None:
        """Release the checkpoint."""
        self._lock.release()

    def values(self) -> dict[str, Any]:
        """Return the totals of the run, for a summary."""
        totals = self.totals
        return {
            "lake": str(self.lake.place),
            "store": self.note.store,
            "cursor": self._cursor,
            "batches": totals.batches,
            "slots": totals.slots,
            "rows": totals.rows,
            "bad": totals.bad,
            "slot_bytes": totals.slot_bytes,
            "lake_bytes": totals.lake_bytes,
            "seal": totals.seal,
            **(totals.lag or {}),
            "gaps": totals.gaps,
            "gap_messages": totals.gap_messages,
        }


def _some(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _archived_before(note: ArchiveNote) -> dict[TapName, int]:
    """Return the last seal of each tap that the lake had before the archive began."""
    return {(vhost, tap): seal for vhost, taps in note.skip.items() for tap, seal in taps.items()}


def _chosen(vhost: str | None, taps: Sequence[str]) -> str:
    named = f"tap {', '.join(taps)}" if taps else "all taps"
    return named if vhost is None else f"{named} in vhost {vhost!r}"
