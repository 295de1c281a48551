"""A client of the broker's HTTP server, with a time limit on every step."""

from __future__ import annotations

import http.client
import json
import mmap
import tempfile
import time
from base64 import b64encode
from typing import Any, Final
from urllib.parse import unquote, urlencode, urlsplit

from broker.pipeline.faults import SourceRefused

__all__ = ["Body", "HttpClient", "NotThere"]

DEFAULT_PORT: Final = 15672
TIMEOUT_S: Final = 30.0  # of one step on the socket
PATIENCE_S: Final = 30.0  # for a broker that answered before, and may be restarting
FIRST_TRIES: Final = 3
PAUSE_S: Final = 0.2
PAUSE_MAX_S: Final = 2.0
JSON: Final = "application/json"
LARGE_BYTES: Final = 64 << 20  # a longer body goes through a file
PIECE_BYTES: Final = 1 << 20

Body = bytes | mmap.mmap


class NotThere(SourceRefused):
    """The requested object does not exist (404)."""


class HttpClient:
    """One connection, opened on first use.

    A request without an answer is repeated: every request here may safely be carried out twice.
    Invariant: no text contains the password.
    """

    def __init__(self, url: str) -> None:
        """Check the arguments. Raises: SourceRefused when it is no http or https URL."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise SourceRefused("the url is none: it should be http://user:password@host:15672") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SourceRefused("the url should be http://user:password@host:15672, or https")
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, port or DEFAULT_PORT
        self.user = unquote(parts.username or "guest")
        login = f"{self.user}:{unquote(parts.password or 'guest')}"
        self._headers = {"Authorization": f"Basic {b64encode(login.encode()).decode()}", "Accept": "*/*"}
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.address = f"{parts.scheme}://{host}:{self._port}"
        self._connection: http.client.HTTPConnection | None = None
        self._answered = False

    def get(self, path: str, **query: Any) -> Body:
        """Return the body of a response, a large one mapped. Raises: NotThere, SourceRefused."""
        asked = {name: value for name, value in query.items() if value is not None}
        return self._request("GET", f"{path}?{urlencode(asked)}" if asked else path)

    def get_json(self, path: str, **query: Any) -> Any:
        """Return the parsed JSON body of a response. Raises: NotThere, SourceRefused."""
        return self._said(self.get(path, **query))

    def send(self, method: str, path: str, **fields: Any) -> Any:
        """Send JSON, and return the parsed answer, None if it has no body. Raises: NotThere, SourceRefused."""
        sent = {name: value for name, value in fields.items() if value is not None}
        answer = self._request(method, path, json.dumps(sent).encode())
        return self._said(answer) if answer else None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _said(self, body: Body) -> Any:
        try:
            return json.loads(body[:])
        except ValueError:
            raise SourceRefused(f"{self.address} does not answer as a SlotMQ broker does") from None

    def _request(self, method: str, path: str, body: bytes | None = None) -> Body:
        end = time.monotonic() + PATIENCE_S
        tries, pause_s = 0, PAUSE_S
        while True:
            tries += 1
            try:
                status, answer = self._try(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if time.monotonic() > end if self._answered else tries >= FIRST_TRIES:
                    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
                    raise SourceRefused(f"no answer from the broker at {self.address}: {said}") from None
            else:
                self._answered = True
                if status != 503 or time.monotonic() > end:
                    return self._checked(status, answer)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _try(self, method: str, path: str, body: bytes | None) -> tuple[int, Body]:
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
            raise NotThere(f"the broker at {self.address} says: {reason}")
        if status in (401, 403):
            raise SourceRefused(f"the broker at {self.address} refuses user {self.user!r}: {reason}")
        raise SourceRefused(f"the broker at {self.address} cannot do that: {reason}")


def _mapped(answer: http.client.HTTPResponse) -> mmap.mmap:
    """Return the body of a response, mapped from a file without a name. Raises: HTTPException if it is cut short."""
    length = answer.length
    with tempfile.TemporaryFile() as file:
        while piece := answer.read(PIECE_BYTES):
            file.write(piece)
        if file.tell() != length:
            raise http.client.IncompleteRead(b"")
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
