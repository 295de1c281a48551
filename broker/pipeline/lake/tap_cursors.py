"""The cursors of an archive, and the taps that it selects with their gaps and lag."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from broker.pipeline.faults import LakeRefused, SourceRefused
from broker.pipeline.source.catalog import Catalog
from broker.pipeline.source.options import WILDCARDS, is_chosen
from broker.slot_files.seal_log import Gap, QueueKey, Released
from broker.slot_files.seal_view import Lag, LagTable

TapName = tuple[str, str]  # vhost, tap


class TapCursors:
    """The cursors of one name on the selected taps. Shapes: `taps` are names or globs, or () for all."""

    def __init__(
        self, catalog: Catalog, name: str, *, vhost: str | None, taps: Sequence[str], say: Callable[[str], None]
    ) -> None:
        self.name = name
        self._catalog = catalog
        self._vhost = vhost
        self._taps = tuple(taps)
        self._exact = bool(taps) and not any(sign in tap for tap in taps for sign in WILDCARDS)
        self._say = say
        self._created: set[TapName] = set()  # the taps on which this run created the cursor
        self._reported = False  # whether it was reported that the broker does not answer

    def selects(self, vhost: str, tap: str) -> bool:
        return is_chosen(vhost, tap, self._vhost, self._taps or None)

    def taps(self) -> set[TapName]:
        """Return the selected taps; if no broker answers, only those with slots or with a cursor are known."""
        view = self._catalog.view()
        found = view.taps | {(cursor.vhost, cursor.tap) for cursor in view.cursors if cursor.name == self.name}
        try:
            found |= {(tap["vhost"], tap["name"]) for tap in self._catalog.taps()}
        except SourceRefused as refused:
            self._report_once(refused)
        return {tap for tap in found if self.selects(*tap)}

    def keys(self) -> dict[QueueKey, TapName]:
        """Return the known queues of the selected taps, each with its tap; deleted taps are included."""
        view = self._catalog.view()
        facts: list[Gap | Released] = [*view.gaps, *view.released.values()]
        found = view.taps_of_queues | {fact.key: (fact.vhost, fact.queue) for fact in facts}
        return {key: tap for key, tap in found.items() if self.selects(*tap)}

    def begins(self, archived: Mapping[TapName, int]) -> dict[TapName, int]:
        """Return, for each tap, the seal after which a new archive begins; `archived` are the lake's last seals."""
        view = self._catalog.view()
        ascending = sorted(view.released.values(), key=attrgetter("seal"))  # a tap may have several queues
        released = {(one.vhost, one.queue): one.seal for one in ascending}
        return {tap: archived.get(tap, released.get(tap, 0)) for tap in self.taps()}

    def lag(self, seal: int, now_ms: int) -> Lag:
        """Return the lag of the selected taps together after a seal. Units: `now_ms` is wall-clock time."""
        return LagTable(self._catalog.view().after(seal, queues=self.keys())).behind(seal, now_ms)

    def lost(self, seal: int) -> list[Gap]:
        return self._catalog.view().lost(seal, queues=self.keys())

    def lost_before(self, archived: Mapping[TapName, int]) -> list[Gap]:
        """Return the gaps of an archive without a batch: in each tap after the lake's last seal, else after the cursor.

        In a tap with neither, released slots are not a gap, because other readers have passed them.
        """
        view = self._catalog.view()
        passed = {(one.vhost, one.tap): one.seal for one in view.cursors if one.name == self.name} | dict(archived)
        found = [
            gap
            for key, tap in self.keys().items()
            for gap in view.lost(passed.get(tap, 0), queues={key})
            if tap in passed or gap.reason != "released"
        ]
        return sorted(found, key=lambda gap: gap.seal)

    def seal_now(self) -> None:
        """Seal the open slots, if a broker runs."""
        try:
            for vhost, tap in sorted(self.taps()):
                self._catalog.seal_now(vhost, tap)
        except SourceRefused as refused:
            self._report_once(refused)

    def check_rights(self) -> None:
        """Check that the user may read every tap, unless all selected taps are named without wildcards.

        Raises: LakeRefused, because if the right were granted later, earlier slots would be missing in the lake.
        """
        self._catalog.view()
        if self._catalog.partial and not self._exact:
            raise LakeRefused(f"the user may not read every tap of {self._catalog.address}: name the taps with --tap")

    def release(self, seal: int, incarnation: str, begins: Mapping[TapName, int]) -> bool:
        """Set the cursors of the selected taps to a seal; return whether the broker recorded it.

        Shapes: `begins` maps a tap to the seal that is set instead of `seal`. Raises: LakeRefused, as `check_rights`.
        """
        try:
            taps = sorted(self.taps())
            self.check_rights()
            starts = self._catalog.view().starts
            for tap in taps:
                begin = begins.get(tap)
                place = (seal, incarnation) if begin is None else (begin, starts.of(begin))
                if self._catalog.view().cursor(self.name, *tap) is None:
                    self._created.add(tap)
                self._catalog.set_cursor(self.name, *tap, *place)
        except SourceRefused as refused:
            self._report_once(refused)
            return False
        self._reported = False
        return True

    def withdraw(self) -> None:
        try:
            for tap in sorted(self._created):
                self._catalog.remove_cursor(self.name, *tap)
        except SourceRefused as refused:
            self._report_once(refused)

    def _report_once(self, refused: SourceRefused) -> None:
        if not self._reported:
            self._say(f"the cursor is not moved for now: {refused}")
        self._reported = True
