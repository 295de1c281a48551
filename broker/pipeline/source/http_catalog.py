"""The catalog of a broker on another machine, over its HTTP server, which sends the same bytes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote, urlencode

from broker.pipeline.faults import SlotMissing, SourceRefused
from broker.pipeline.source.http_client import Body, HttpClient, NotThere
from broker.pipeline.source.slot_handle import SlotHandle
from broker.slot_files.seal_log import BadSealLine
from broker.slot_files.seal_starts import SealStarts
from broker.slot_files.seal_view import SealView

__all__ = ["HttpCatalog"]

PAGE_SEALS: Final = 1000


class HttpCatalog:
    """Reads from the broker at a URL. Slots that its user may not read do not appear."""

    def __init__(self, url: str) -> None:
        """Check the arguments. Raises: SourceRefused."""
        self._client = HttpClient(url)
        self._view = SealView()
        self.partial = False  # whether the broker ever omitted something that this user may not read

    @property
    def address(self) -> str:
        """The URL without user and password."""
        return self._client.address

    @property
    def store(self) -> str:
        """The store id."""
        return str(self._client.get_json("/v1/store")["store"])

    def view(self) -> SealView:
        """Return the current state of the seal log; request only its new lines."""
        more = True
        while more:
            page = self._client.get_json("/v1/seals", after=self._view.last_seal, limit=PAGE_SEALS)
            try:
                more = self._fold(page)
            except (BadSealLine, KeyError, TypeError) as error:
                raise SourceRefused(f"the broker at {self.address} lists slots as no SlotMQ does: {error!r}") from None
        return self._view

    def _fold(self, page: dict[str, Any]) -> bool:
        """Fold a page into the view, and return whether another page follows."""
        starts = SealStarts()
        for start in page.get("incarnations", ()):
            starts.begin(start["seal"], start["incarnation"])
        known = self._view.last_seal
        parted = known > page["last_seal"] or starts.of(known) != self._view.starts.of(known)
        if self._view.store and (self._view.store != page["store"] or parted):
            self._view = SealView()  # another data folder at the same URL, or a copy of it: start anew
            return True
        more = bool(page["more"])
        self.partial = self.partial or bool(page.get("partial"))
        view = self._view
        for start in starts.rows():
            view.fold({"k": "incarnation", **start})
        # Lost slots come first: the seals may list a slot that no longer exists.
        for kind, name in (("seal", "seals"), ("gap", "gaps"), ("released", "released"), ("cursor", "cursors")):
            for line in page[name]:
                if line.get("reason") != "released":  # the broker derives such a gap from a released line
                    view.fold({"k": kind, **line})
        known = view.last_seal if more else max(view.last_seal, page["last_seal"])
        view.fold({"k": "store", "format": 1, "store": page["store"], "last_seal": known})
        return more

    def fetch(self, seal: int) -> Any:
        """Return the bytes of a sealed slot file. Raises: SlotMissing."""
        return self._get(f"/v1/slots/{seal}", f"slot {seal}")

    def fetch_slot(self, slot: SlotHandle) -> Any:
        """Return the bytes of a slot file. Raises: SlotMissing."""
        return self._get(self._path(slot), str(slot))

    def location(self, slot: SlotHandle) -> str:
        """Return the URL of a slot file."""
        return self.address + self._path(slot)

    def snapshot(self, vhost: str, queue: str) -> list[SlotHandle]:
        """Return slots of a queue's current contents."""
        answer = self._client.send("POST", "/v1/snapshots", vhost=vhost, queue=queue)
        return SlotHandle.of_snapshot(answer, vhost, queue)

    def seal_now(self, vhost: str | None = None, tap: str | None = None) -> int:
        """Seal the open slots, and return the last seal."""
        return int(self._client.send("POST", "/v1/seal", vhost=vhost, tap=tap)["last_seal"])

    def set_cursor(self, name: str, vhost: str, tap: str, seal: int, incarnation: str | None = None) -> None:
        """Record that a reader has passed a seal of a start."""
        place = {"vhost": vhost, "tap": tap, "seal": seal, "incarnation": incarnation}
        self._client.send("PUT", f"/v1/cursors/{quote(name, safe='')}", **place)

    def remove_cursor(self, name: str, vhost: str, tap: str) -> None:
        """Remove a cursor."""
        with suppress(NotThere):  # a request without an answer is repeated
            self._client.send("DELETE", f"/v1/cursors/{quote(name, safe='')}?{urlencode({'vhost': vhost, 'tap': tap})}")

    def note_read(self, taps: Iterable[tuple[str, str]]) -> None:
        """Do nothing: the broker sees which slots are fetched."""

    def taps(self) -> list[dict[str, Any]]:
        """Return the taps and their state."""
        taps: list[dict[str, Any]] = self._client.get_json("/v1/taps")["taps"]
        return taps

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _path(self, slot: SlotHandle) -> str:
        return f"/v1/slots/{slot.seal}" if slot.snapshot is None else "/v1/snapshots/{}/{}".format(*slot.snapshot)

    def _get(self, path: str, slot: str) -> Body:
        try:
            return self._client.get(path)
        except NotThere as error:
            raise SlotMissing(f"{slot} is gone: {error}") from None
