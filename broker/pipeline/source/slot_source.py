"""What both formats stand on: the slots that were asked for, in runs for tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql.datasource import InputPartition

from broker.pipeline.faults import SourceRefused
from broker.pipeline.source.catalog import Catalog
from broker.pipeline.source.losses import lost_since, refuse_gaps
from broker.pipeline.source.message_run import SlotRun
from broker.pipeline.source.options import WILDCARDS, SourceOptions
from broker.pipeline.source.planner import runs, wanted
from broker.pipeline.source.positions import LATEST
from broker.pipeline.source.slot_handle import SlotHandle
from broker.slot_files.seal_view import SealView

__all__ = ["SlotSource"]


class SlotSource:
    """The slots of one broker, as the options choose them. It lives in one process: its catalog is open."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Check the arguments. Raises: SourceRefused."""
        self.options = SourceOptions.read(options)
        self.conditions = self.options.conditions()
        self.catalog: Catalog = self.options.catalog()

    def view(self) -> SealView:
        """Return what the seal log says now."""
        return self.catalog.view()

    def after(self, view: SealView, seal: int, up_to: int | None = None) -> Iterator[SlotHandle]:
        """Yield the slots behind a seal that can have a wanted row."""
        takes, store = self.options.takes, view.store
        found = (
            SlotHandle.of(store, one)
            for one in view.after(seal)
            if takes(one.vhost, one.queue) and (up_to is None or one.seal <= up_to)
        )
        return wanted(found, self.conditions)

    def all_now(self) -> list[SlotHandle]:
        """Return the slots of a read that ends. Raises: SlotGap, SourceRefused."""
        options = self.options
        if options.begin == LATEST:
            raise SourceRefused("option from: latest is for streams; a read that ends would read nothing")
        if options.queues:
            return self._snapshots()
        if options.seal_now:
            self.seal_now()
        view = self.view()
        self.check_taps(view)
        if options.fail_on_gap:
            refuse_gaps(lost_since(view, options.begin, options.takes), f"{options.wants()} is read from an option")
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
            return (vhost, tap) in _known(self.view())
        except SourceRefused:  # no slots at all
            return False

    def seal_now(self) -> None:
        """Has the broker seal what is open in the taps that are read. Raises: SourceRefused."""
        options = self.options
        if options.taps is None or any(sign in name for name in options.taps for sign in WILDCARDS):
            self.catalog.seal_now(options.vhost)
            return
        for tap in options.taps:
            self.catalog.seal_now(options.vhost or "/", tap)

    def check_taps(self, view: SealView) -> None:
        """Raise SourceRefused for a tap that nobody knows; one without slots so far is known to the running broker."""
        options = self.options
        plain = [name for name in options.taps or () if not any(sign in name for sign in WILDCARDS)]
        known = _known(view)
        missing = [name for name in plain if not _among(name, options.vhost, known)]
        if not missing:
            return
        try:
            known |= {(row["vhost"], row["name"]) for row in self.catalog.taps()}
        except SourceRefused:  # nobody runs there: only what has slots can be known
            pass
        for name in missing:
            if not _among(name, options.vhost, known):
                others = ", ".join(sorted({repr(tap) for _, tap in known})) or "none"
                where = "" if options.vhost is None else f" in vhost {options.vhost!r}"
                raise SourceRefused(f"there is no tap {name!r}{where} at {self.catalog.address}; there are: {others}")

    def tasks(self, slots: Sequence[SlotHandle], reader: str) -> list[InputPartition]:
        """Return the slots shared out among tasks. Shapes: `reader` names who reads, for texts."""
        options = self.options
        path = None if options.path is None else self.catalog.address  # not relative: a worker may run elsewhere
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
    """Return the vhosts and names of the taps of which there is a line in the log."""
    known = {(seal.vhost, seal.queue) for seal in view.seals}
    known |= {(released.vhost, released.queue) for released in view.released.values()}
    return known | {(cursor.vhost, cursor.tap) for cursor in view.cursors}


def _among(name: str, vhost: str | None, known: set[tuple[str, str]]) -> bool:
    return any(tap == name and vhost in (None, of) for of, tap in known)
