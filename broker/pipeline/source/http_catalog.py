"""The catalog of a remote broker's slots, read over its HTTP server."""

from __future__ import annotations

import http.client
import json
import mmap
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

from broker.pipeline.faults import SlotMissing, SourceRefused, restated
from broker.pipeline.source.slot_handle import SlotHandle
from broker.slot_files.seal_log import BadSealLine
from broker.slot_files.seal_view import SealStarts, SealView

PAGE_SEALS: Final = 1000
DEFAULT_PORT: Final = 15672
TIMEOUT_S: Final = 30.0  # for each socket operation
RETRY_LIMIT_S: Final = 30.0  # for a broker that answered before and may be restarting
FIRST_TRIES: Final = 3  # for a broker that has not answered yet
PAUSE_S: Final = 0.2
PAUSE_MAX_S: Final = 2.0
JSON: Final = "application/json"
LARGE_BYTES: Final = 64 << 20  # a longer body is written to a file and mapped
CHUNK_BYTES: Final = 1 << 20

Body = bytes | mmap.mmap


class NotFound(SourceRefused):
    """The requested object does not exist (404)."""


class HttpClient:
    """One connection, opened on first use, with a timeout for every socket operation.

    A request without an answer, or with the status 503, is repeated for a while, so callers send only requests that may
    be carried out twice.
    Invariant: no error text contains the password.
    """

    def __init__(self, url: str) -> None:
        """Check the URL. Raises: SourceRefused if it is not an http or https URL."""
        try:
            parts = urlsplit(url)
            port = parts.port
            (parts.hostname or "").encode("idna")  # as the resolver does
        except ValueError:
            raise SourceRefused("the url is not valid: it should be http://user:password@host:15672") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SourceRefused("the url should be http://user:password@host:15672, or https")
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, port or DEFAULT_PORT
        self.user = unquote(parts.username or "guest")
        credentials = f"{self.user}:{unquote(parts.password or 'guest')}"
        self._headers = {"Authorization": f"Basic {b64encode(credentials.encode()).decode()}", "Accept": "*/*"}
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.address = f"{parts.scheme}://{host}:{self._port}"
        self._connection: http.client.HTTPConnection | None = None
        self._answered = False

    def get_json(self, path: str, **query: Any) -> Any:
        """Return the parsed JSON body of a response. Raises: NotFound, SourceRefused."""
        return self._parsed(self.request("GET", f"{path}?{urlencode(query)}" if query else path))

    def send(self, method: str, path: str, **fields: Any) -> Any:
        """Send JSON, and return the parsed answer, or None for an empty body. Raises: NotFound, SourceRefused."""
        sent = {name: value for name, value in fields.items() if value is not None}
        answer = self.request(method, path, json.dumps(sent).encode())
        return self._parsed(answer) if answer else None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _parsed(self, body: Body) -> Any:
        try:
            return json.loads(body[:])
        except ValueError:
            raise SourceRefused(f"the answer of {self.address} is not that of a SlotMQ broker") from None

    def request(self, method: str, path: str, body: bytes | None = None) -> Body:
        """Send a request and return the body of its answer; a large one is mapped. Raises: NotFound, SourceRefused."""
        end = time.monotonic() + RETRY_LIMIT_S
        tries, pause_s = 0, PAUSE_S
        while True:
            tries += 1
            try:
                status, answer = self._request_once(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if time.monotonic() > end if self._answered else tries >= FIRST_TRIES:
                    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
                    raise SourceRefused(f"no answer from the broker at {self.address}: {text}") from None
            else:
                self._answered = True
                if status != 503 or time.monotonic() > end:
                    return self._checked(status, answer)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _request_once(self, method: str, path: str, body: bytes | None) -> tuple[int, Body]:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            self._connection = kind(self._host, self._port, timeout=TIMEOUT_S)
        headers = self._headers if body is None else {**self._headers, "Content-Type": JSON}
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        large = answer.status == http.HTTPStatus.OK and answer.length is not None and answer.length > LARGE_BYTES
        return answer.status, _mapped(answer) if large else answer.read()

    def _checked(self, status: int, answer: Body) -> Body:
        if 200 <= status < 300:
            return answer
        try:
            reason = str(json.loads(answer[:])["reason"])
        except (ValueError, KeyError, TypeError):
            reason = f"status {status}"
        if status == 404:
            raise NotFound(f"the broker at {self.address} says: {reason}")
        if status in (401, 403):
            raise SourceRefused(f"the broker at {self.address} refuses user {self.user!r}: {reason}")
        raise SourceRefused(f"the broker at {self.address} cannot do that: {reason}")


def _mapped(answer: http.client.HTTPResponse) -> mmap.mmap:
    """Return the body of a response, mapped from an unnamed file. Raises: HTTPException if the body is cut short."""
    length = answer.length
    with tempfile.TemporaryFile() as file:
        while chunk := answer.read(CHUNK_BYTES):
            file.write(chunk)
        if file.tell() != length:
            raise http.client.IncompleteRead(b"")
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class HttpCatalog:
    """The slots of the broker at a URL, as far as its user may read them."""

    def __init__(self, url: str) -> None:
        self._client = HttpClient(url)
        self.address = self._client.address  # the URL without user and password
        self._view = SealView()
        self.partial = False  # whether the broker has omitted slots that this user may not read

    def view(self) -> SealView:
        """Return the current state of the seal log; only new lines are requested."""
        more = True
        while more:
            page = self._client.get_json("/v1/seals", after=self._view.last_seal, limit=PAGE_SEALS)
            try:
                more = self._fold(page)
            except (BadSealLine, KeyError, TypeError) as error:
                raise SourceRefused(f"the list of slots from {self.address} is not valid: {error!r}") from None
        return self._view

    def _fold(self, page: dict[str, Any]) -> bool:
        """Fold a page into the view, and return whether another page follows."""
        starts = SealStarts()
        for start in page.get("incarnations", ()):
            starts.begin(start["seal"], start["incarnation"])
        known = self._view.last_seal
        parted = known > page["last_seal"] or starts.of(known) != self._view.starts.of(known)
        if self._view.store and (self._view.store != page["store"] or parted):
            self._view = SealView()  # another data folder, or a restored copy, is now at this URL: start over
            return True
        more = bool(page["more"])
        self.partial = self.partial or bool(page.get("partial"))
        view = self._view
        for start in starts.rows():
            view.fold({"k": "incarnation", **start})
        for kind, name in (("seal", "seals"), ("gap", "gaps"), ("released", "released"), ("cursor", "cursors")):
            for line in page[name]:
                if line.get("reason") != "released":  # the broker derived this gap from a released line
                    view.fold({"k": kind, **line})
        known = view.last_seal if more else max(view.last_seal, page["last_seal"])
        view.fold({"k": "store", "format": 1, "store": page["store"], "last_seal": known})
        return more

    def fetch_slot(self, slot: SlotHandle) -> Body:
        """Return the bytes of a slot file, sealed or of a snapshot. Raises: SlotMissing, SourceRefused."""
        with restated(NotFound, SlotMissing, f"{slot} is gone: "):
            return self._client.request("GET", self._path(slot))

    def location(self, slot: SlotHandle) -> str:
        return self.address + self._path(slot)

    def snapshot(self, vhost: str, queue: str) -> list[SlotHandle]:
        answer = self._client.send("POST", "/v1/snapshots", vhost=vhost, queue=queue)
        return SlotHandle.of_snapshot(answer, vhost, queue)

    def seal_now(self, vhost: str | None = None, tap: str | None = None) -> int:
        return int(self._client.send("POST", "/v1/seal", vhost=vhost, tap=tap)["last_seal"])

    def set_cursor(self, name: str, vhost: str, tap: str, seal: int, incarnation: str) -> None:
        place = {"vhost": vhost, "tap": tap, "seal": seal, "incarnation": incarnation}
        self._client.send("PUT", f"/v1/cursors/{quote(name, safe='')}", **place)

    def remove_cursor(self, name: str, vhost: str, tap: str) -> None:
        with suppress(NotFound):  # a repeated request finds the cursor already removed
            self._client.send("DELETE", f"/v1/cursors/{quote(name, safe='')}?{urlencode({'vhost': vhost, 'tap': tap})}")

    def note_read(self, taps: Iterable[tuple[str, str]]) -> None:
        """Do nothing: the broker sees which slots are fetched."""

    def taps(self) -> list[dict[str, Any]]:
        taps: list[dict[str, Any]] = self._client.get_json("/v1/taps")["taps"]
        return taps

    def close(self) -> None:
        self._client.close()

    def _path(self, slot: SlotHandle) -> str:
        return f"/v1/slots/{slot.seal}" if slot.snapshot is None else "/v1/snapshots/{}/{}".format(*slot.snapshot)
