"""The cursors of an archive: which taps it has, up to where they are archived, and what of them is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from broker.pipeline.faults import LakeRefused, SourceRefused
from broker.pipeline.source.catalog import Catalog
from broker.slot_files.cursor_lag import Lag, LagTable
from broker.slot_files.seal_log import Gap, QueueKey, Released, Seal

__all__ = ["TapCursors"]

TapName = tuple[str, str]  # vhost, tap


class TapCursors:
    """One named cursor on each tap of a choice.

    Shapes: taps are names or globs, none for all; vhost None for all.
    """

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        *,
        vhost: str | None,
        taps: Sequence[str],
        say: Callable[[str], None],
    ) -> None:
        self.name = name
        self._catalog = catalog
        self._vhost = vhost
        self._taps = tuple(taps)
        self._exact = bool(taps) and not any(character in tap for tap in taps for character in "*?[")
        self._say = say
        self._silent = False  # the broker did not answer the last time, and that was said

    def wants(self, vhost: str, tap: str) -> bool:
        """Return whether a tap is chosen."""
        if self._vhost not in (None, vhost):
            return False
        return not self._taps or any(tap == name or fnmatchcase(tap, name) for name in self._taps)

    def taps(self) -> set[TapName]:
        """Return the chosen taps that there are, or of which there are slots; the latter only where no broker runs."""
        view = self._catalog.view()
        found = {(seal.vhost, seal.queue) for seal in view.seals}
        found |= {(cursor.vhost, cursor.tap) for cursor in view.cursors if cursor.name == self.name}
        try:
            found |= {(tap["vhost"], tap["name"]) for tap in self._catalog.taps()}
        except SourceRefused as refused:
            self._tell(refused)
        return {tap for tap in found if self.wants(*tap)}

    def keys(self) -> set[QueueKey]:
        """Return the queues of the chosen taps, of those too that are gone."""
        view = self._catalog.view()
        facts: list[Seal | Gap | Released] = [*view.seals, *view.gaps, *view.released.values()]
        return {fact.key for fact in facts if self.wants(fact.vhost, fact.queue)}

    def start(self, archived: Mapping[TapName, int]) -> int:
        """Return the seal behind which a new archive begins: behind what the lake has, else with what there is."""
        view = self._catalog.view()
        released = {(one.vhost, one.queue): one.seal for one in view.released.values()}
        begins = [archived.get(tap, released.get(tap, 0)) for tap in self.taps()]
        return min(begins, default=0)

    def lag(self, seal: int, now_ms: int) -> Lag:
        """Return what waits behind a seal, of all its taps together. Units: `now_ms` is the time of day."""
        return LagTable(self._catalog.view().after(seal, queues=self.keys())).behind(seal, now_ms)

    def lost(self, seal: int) -> list[Gap]:
        """Return what an archive that stands at a seal can no longer have."""
        return self._catalog.view().lost(seal, queues=self.keys())

    def lost_of(self, archived: Mapping[TapName, int]) -> list[Gap]:
        """Return what an archive can no longer have that goes on behind other seals in each tap."""
        view = self._catalog.view()
        found = []
        for key in self.keys():
            facts: list[Seal | Gap | Released] = [*view.of_queue(key), *view.gaps, *view.released.values()]
            names = {(one.vhost, one.queue) for one in facts if one.key == key}
            seals = [archived[name] for name in names if name in archived]
            found += view.lost(max(seals), queues={key}) if seals else []
        return sorted(found, key=lambda gap: gap.seal)

    def seal_now(self) -> None:
        """Has what is open sealed, where a broker runs."""
        try:
            for vhost, tap in sorted(self.taps()):
                self._catalog.seal_now(vhost, tap)
        except SourceRefused as refused:
            self._tell(refused)

    def check_rights(self) -> None:
        """Return when the user may read what the choice may mean.

        Raises: LakeRefused otherwise: were the right given later, slots would be behind the archive's seal and in no
            lake.
        """
        self._catalog.view()
        if self._catalog.partial and not self._exact:
            raise LakeRefused(
                f"the user may not read every tap of {self._catalog.address}: name those that are meant with --tap"
            )

    def release(self, seal: int, incarnation: str | None) -> bool:
        """Say of every tap that it is archived up to a seal of a start; tells whether the broker took note of it.

        Raises: as `check_rights`.
        """
        try:
            taps = sorted(self.taps())
            self.check_rights()
            for tap in taps:
                self._catalog.set_cursor(self.name, *tap, seal, incarnation or None)
        except SourceRefused as refused:
            self._tell(refused)
            return False
        self._silent = False
        return True

    def _tell(self, refused: SourceRefused) -> None:
        if not self._silent:
            self._say(f"the cursor stays where it is for now: {refused}")
        self._silent = True
