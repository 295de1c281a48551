"""The slots that the options select, split into runs for tasks, and the gaps between them: shared by both formats."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Final

from pyspark.sql.datasource import InputPartition

from broker.pipeline.faults import SlotGap, SourceRefused
from broker.pipeline.source.catalog import Catalog
from broker.pipeline.source.message_run import SlotRun
from broker.pipeline.source.options import WILDCARDS, SourceOptions
from broker.pipeline.source.planner import LATEST, Position, runs, wanted
from broker.pipeline.source.slot_handle import SlotHandle
from broker.slot_files.seal_log import Gap, QueueKey, Seal
from broker.slot_files.seal_view import SealView

TapFilter = Callable[[str, str], bool]  # vhost and tap
_SEAL: Final = attrgetter("seal")


def lost_since(view: SealView, begin: Position, selects: TapFilter, end: Position = LATEST) -> list[Gap]:
    """Return the gaps that may have messages from `begin` to `end`; none for latest.

    For earliest, only gaps after the first existing slot of their queue count. For an id or a time, earlier gaps count,
    too, unless that slot begins at or before the id or time. One gap stands for released slots that left none there.
    """
    if begin.kind == "latest":
        return []
    gaps: dict[QueueKey, list[Gap]] = {key: [] for key in list(view.released)}
    for gap in view.gaps:
        gaps.setdefault(gap.key, []).append(gap)
    found = [gap for key, known in gaps.items() for gap in _lost_of_queue(view, key, known, begin, end)]
    return sorted((gap for gap in found if selects(gap.vhost, gap.queue)), key=_SEAL)


def _lost_of_queue(view: SealView, key: QueueKey, gaps: Sequence[Gap], begin: Position, end: Position) -> list[Gap]:
    slots = view.of_queue(key)
    found = [gap for gap in gaps if _reaches(gap, begin, slots) and _precedes(gap, end, slots)]
    released = view.released.get(key)
    if released is not None and not any(gap.seal <= released.seal for gap in found):
        found += [gap for gap in [released.gap()] if _reaches(gap, begin, slots)]
    return found


def _begins_after(slot: Seal, begin: Position) -> bool:
    return slot.first > begin.value if begin.kind == "id" else slot.first_ts_ms * 1000 > begin.value


def _reaches(gap: Gap, begin: Position, slots: Sequence[Seal]) -> bool:
    """Return whether a gap may have messages from a position on. It has no times, but the slot after it has."""
    match begin.kind:
        case "earliest":
            return bool(slots) and gap.seal > slots[0].seal  # a file was missing or damaged
        case "seal":
            return gap.seal >= begin.value
        case "id" if gap.reason != "released":
            return gap.end > begin.value
    at = bisect_left(slots, gap.seal, key=_SEAL)
    return at == len(slots) or _begins_after(slots[at], begin)


def _precedes(gap: Gap, end: Position, slots: Sequence[Seal]) -> bool:
    """Return whether a gap may have messages before a position. It has no times, but the slot before it has."""
    match end.kind:
        case "latest":
            return True
        case "seal":
            return gap.seal < end.value
        case "id":
            return gap.first < end.value
    at = bisect_left(slots, gap.seal, key=_SEAL)
    return at == 0 or slots[at - 1].last_ts_ms * 1000 < end.value


def gap_text(gaps: Sequence[Gap]) -> str:
    """Return a short description of the gaps."""
    first = gaps[0]
    tap = f"tap {first.queue!r} in vhost {first.vhost!r}"
    if first.reason == "released":
        text = f"the slots of {tap} up to seal {first.seal} were released"
    else:
        text = f"slot {first.seal} of {tap} with {first.count:,} messages was lost unread ({first.reason})"
    return text if len(gaps) == 1 else f"{text}, and {len(gaps) - 1} more gaps"


def refuse_gaps(gaps: Sequence[Gap], where: str) -> None:
    """Raise SlotGap if there are gaps. Shapes: `where` describes the reader."""
    if gaps:
        raise SlotGap(
            f"messages are lost: {gap_text(gaps)}; {where}; failOnGap=false or --allow-gap continues without them"
        )


class SlotSource:
    """The slots of one broker that the options select. It stays in one process, because its catalog is open."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Check the options and open the catalog. Raises: SourceRefused."""
        self.options = SourceOptions.read(options)
        self.conditions = self.options.conditions()
        self.catalog: Catalog = self.options.catalog()

    def after(self, view: SealView, seal: int, up_to: int | None = None) -> Iterator[SlotHandle]:
        """Yield the slots after a seal that may contain selected rows."""
        selects, store = self.options.selects, view.store
        found = (
            SlotHandle.of(store, one)
            for one in view.after(seal)
            if selects(one.vhost, one.queue) and (up_to is None or one.seal <= up_to)
        )
        return wanted(found, self.conditions)

    def all_now(self) -> list[SlotHandle]:
        """Return the slots of a batch read. Raises: SlotGap, SourceRefused."""
        options = self.options
        if options.begin == LATEST:
            raise SourceRefused("option from: latest is for streams; a read that ends would read nothing")
        if options.queues:
            return self._snapshots()
        if options.seal_now:
            self.seal_now()
        view = self.catalog.view()
        self.check_taps(view)
        if options.fail_on_gap:
            lost = lost_since(view, options.begin, options.selects, options.end)
            refuse_gaps(lost, f"a read of {options.description()} begins before them")
        return list(self.after(view, 0))

    def _snapshots(self) -> list[SlotHandle]:
        options = self.options
        if "seal" in (options.begin.kind, options.end.kind):
            raise SourceRefused("a queue's snapshot has no seals: give from and to as id:N or a time")
        return list(wanted((slot for queue in options.queues for slot in self._snapshot(queue)), self.conditions))

    def _snapshot(self, queue: str) -> list[SlotHandle]:
        vhost = self.options.vhost or "/"
        try:
            return self.catalog.snapshot(vhost, queue)
        except SourceRefused as error:
            if self._has_slots(queue, vhost):
                raise SourceRefused(f"{error}; there is a tap of that name: it is read by option tap") from None
            raise SourceRefused(f"{error}; a queue is read by a snapshot that the running broker makes") from None

    def _has_slots(self, tap: str, vhost: str) -> bool:
        try:
            return (vhost, tap) in _known(self.catalog.view())
        except SourceRefused:  # the broker has no slots at all
            return False

    def seal_now(self) -> None:
        """Make the broker seal the open slots of the selected taps. Raises: SourceRefused."""
        options = self.options
        if options.taps is None or any(sign in name for name in options.taps for sign in WILDCARDS):
            self.catalog.seal_now(options.vhost)
            return
        for tap in options.taps:
            self.catalog.seal_now(options.vhost or "/", tap)

    def check_taps(self, view: SealView) -> None:
        """Raise SourceRefused for an unknown tap. Only the running broker knows taps that have no slots yet."""
        options = self.options
        exact = [name for name in options.taps or () if not any(sign in name for sign in WILDCARDS)]
        known = _known(view)
        missing = [name for name in exact if not _is_known(name, options.vhost, known)]
        if not missing:
            return
        with suppress(SourceRefused):  # without a running broker, only taps with slots are known
            known |= {(row["vhost"], row["name"]) for row in self.catalog.taps()}
        for name in missing:
            if not _is_known(name, options.vhost, known):
                others = ", ".join(sorted({repr(tap) for _, tap in known})) or "none"
                where = "" if options.vhost is None else f" in vhost {options.vhost!r}"
                raise SourceRefused(f"there is no tap {name!r}{where} at {self.catalog.address}; there are: {others}")

    def tasks(self, slots: Sequence[SlotHandle], reader: str) -> list[InputPartition]:
        """Return the slots split into tasks. Shapes: `reader` describes the reader, for error texts."""
        options = self.options
        path = None if options.path is None else self.catalog.address  # absolute: a worker may run in another folder
        return [
            SlotRun(
                path,
                options.url,
                run,
                self.conditions,
                reader=reader,
                fail_on_gap=options.fail_on_gap,
                fail_on_bad_rows=options.fail_on_bad_rows,
            )
            for run in runs(slots, options.partitions_min, options.partition_max_bytes)
        ]


def _known(view: SealView) -> set[tuple[str, str]]:
    """Return the vhosts and names of the taps in the seal log."""
    known = {(seal.vhost, seal.queue) for seal in view.seals}
    known |= {(released.vhost, released.queue) for released in view.released.values()}
    return known | {(cursor.vhost, cursor.tap) for cursor in view.cursors}


def _is_known(name: str, vhost: str | None, known: set[tuple[str, str]]) -> bool:
    return any(tap == name and vhost in (None, of) for of, tap in known)
