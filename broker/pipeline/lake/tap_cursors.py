"""The cursors of an archive: the chosen taps, the archived seals of each, and the gaps."""

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
    """One named cursor on each of the chosen taps.

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
        self._silent = False  # the broker did not answer the last time, and that was reported

    def wants(self, vhost: str, tap: str) -> bool:
        """Return whether a tap is chosen."""
        if self._vhost not in (None, vhost):
            return False
        return not self._taps or any(tap == name or fnmatchcase(tap, name) for name in self._taps)

    def taps(self) -> set[TapName]:
        """Return the chosen taps that exist, have slots or have a cursor; without a running broker the latter two."""
        view = self._catalog.view()
        found = {(seal.vhost, seal.queue) for seal in view.seals}
        found |= {(cursor.vhost, cursor.tap) for cursor in view.cursors if cursor.name == self.name}
        try:
            found |= {(tap["vhost"], tap["name"]) for tap in self._catalog.taps()}
        except SourceRefused as refused:
            self._tell(refused)
        return {tap for tap in found if self.wants(*tap)}

    def keys(self) -> set[QueueKey]:
        """Return the queues of the chosen taps, including deleted taps."""
        view = self._catalog.view()
        facts: list[Seal | Gap | Released] = [*view.seals, *view.gaps, *view.released.values()]
        return {fact.key for fact in facts if self.wants(fact.vhost, fact.queue)}

    def start(self, archived: Mapping[TapName, int]) -> int:
        """Return the seal after which a new archive begins: after the lake's last seals, else the released slots."""
        view = self._catalog.view()
        released = {(one.vhost, one.queue): one.seal for one in view.released.values()}
        begins = [archived.get(tap, released.get(tap, 0)) for tap in self.taps()]
        return min(begins, default=0)

    def lag(self, seal: int, now_ms: int) -> Lag:
        """Return the lag after a seal, of all taps together. Units: `now_ms` is the time of day."""
        return LagTable(self._catalog.view().after(seal, queues=self.keys())).behind(seal, now_ms)

    def lost(self, seal: int) -> list[Gap]:
        """Return the gaps of an archive whose position is a seal."""
        return self._catalog.view().lost(seal, queues=self.keys())

    def lost_of(self, archived: Mapping[TapName, int]) -> list[Gap]:
        """Return the gaps of an archive that resumes after a different seal in each tap."""
        view = self._catalog.view()
        found = []
        for key in self.keys():
            facts: list[Seal | Gap | Released] = [*view.of_queue(key), *view.gaps, *view.released.values()]
            names = {(one.vhost, one.queue) for one in facts if one.key == key}
            seals = [archived[name] for name in names if name in archived]
            found += view.lost(max(seals), queues={key}) if seals else []
        return sorted(found, key=lambda gap: gap.seal)

    def seal_now(self) -> None:
        """Seal the open slots, if a broker runs."""
        try:
            for vhost, tap in sorted(self.taps()):
                self._catalog.seal_now(vhost, tap)
        except SourceRefused as refused:
            self._tell(refused)

    def check_rights(self) -> None:
        """Check that the user may read every tap that the choice can match.

        Raises: LakeRefused otherwise: if the right were granted later, slots before the archive's seal would be in no
            lake.
        """
        self._catalog.view()
        if self._catalog.partial and not self._exact:
            raise LakeRefused(
                f"the user may not read every tap of {self._catalog.address}: name those that are meant with --tap"
            )

    def release(self, seal: int, incarnation: str | None) -> bool:
        """Report for every tap that it is archived up to a seal of a start; return whether the broker recorded it.

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
