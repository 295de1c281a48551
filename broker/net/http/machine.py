"""The protocol without I/O: bytes in, requests out; answers in, bytes out. h11 parses HTTP/1.1; this adds limits."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import h11

from broker.net.http.answer import Answer
from broker.net.http.refusal import HttpRefused
from broker.net.http.request import HttpRequest, header_map

__all__ = ["HttpLimits", "HttpMachine"]

SERVER: Final = "SlotMQ"
AMQP: Final = b"AMQP\x00"  # the client would wait for an answer, and the broker for the rest of a line
VERSIONS: Final = (b"1.0", b"1.1")


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of a request."""

    header_max_bytes: int = 16_384
    body_max_bytes: int = 65_536


class HttpMachine:
    """The broker's end of one HTTP connection.

    One request at a time: `next_request`, then `head`, `piece` and `end` of its answer, then `next_cycle`. Input
    that a client sends ahead is buffered meanwhile.
    """

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._connection = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_max_bytes)
        self._fed_bytes = 0  # of this request, including what was sent ahead
        self._request: h11.Request | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self.ended = False

    # -- requests -----------------------------------------------------------------------------------------------------

    def receive(self, octets: bytes) -> None:
        """Take received bytes; none at the end of the input."""
        self._fed_bytes += len(octets)
        self._connection.receive_data(octets)

    @property
    def begun(self) -> bool:
        """Whether a part of the next request has arrived."""
        return self._request is not None or bool(self._connection.trailing_data[0])

    def next_request(self) -> HttpRequest | None:
        """Return the next request with its whole body, or None: more is needed, or the client has left (`ended`).

        Raises: HttpRefused, after which nothing more can be read; its answer can still be sent.
        """
        while True:
            event = self._next_event()
            if isinstance(event, h11.Request):
                self._begin(event)
            elif isinstance(event, h11.Data):
                self._body_bytes += len(event.data)
                if self._body_bytes > self._limits.body_max_bytes:
                    raise self._too_large()
                self._body.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                return self._whole()
            else:
                self.ended = isinstance(event, h11.ConnectionClosed)
                if event is h11.NEED_DATA and self._request is None and self._begins_with(AMQP):
                    raise HttpRefused(400, "no HTTP request: AMQP has another port", fatal=True)
                return None

    def _begins_with(self, octets: bytes) -> bool:
        return self._connection.trailing_data[0].startswith(octets)

    def _next_event(self) -> object:
        try:
            return self._connection.next_event()
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
                raise self._long_header() from None
            status = error.error_status_hint if error.error_status_hint == HTTPStatus.NOT_IMPLEMENTED else 400
            raise HttpRefused(status, f"no HTTP request: {str(error)[:200]}", fatal=True) from None

    def _begin(self, head: h11.Request) -> None:
        self._request = head
        # h11 measures incomplete input only, not a header that arrived in one piece.
        if self._fed_bytes - len(self._connection.trailing_data[0]) > self._limits.header_max_bytes:
            raise self._long_header()
        if head.http_version not in VERSIONS:
            raise HttpRefused(505, "HTTP/1.0 and HTTP/1.1 are spoken here", fatal=True)
        headers = header_map(head.headers)
        if "content-length" in headers and "transfer-encoding" in headers:  # parsers could read different requests
            raise HttpRefused(400, "Content-Length and Transfer-Encoding exclude each other", fatal=True)
        if int(headers.get("content-length", "0")) > self._limits.body_max_bytes:
            raise self._too_large()

    def _whole(self) -> HttpRequest:
        assert self._request is not None
        head = self._request
        return HttpRequest.of(
            head.method.decode("latin-1"), head.target.decode("latin-1"), header_map(head.headers), b"".join(self._body)
        )

    def _long_header(self) -> HttpRefused:
        return HttpRefused(431, f"a header has at most {self._limits.header_max_bytes} bytes", fatal=True)

    def _too_large(self) -> HttpRefused:
        return HttpRefused(413, f"a body has at most {self._limits.body_max_bytes} bytes", fatal=True)

    # -- answers ------------------------------------------------------------------------------------------------------

    def go_on(self) -> bytes:
        """Return the 100 Continue that a client waits for before it sends its body, else nothing."""
        if not self._connection.they_are_waiting_for_100_continue:
            return b""
        return self._connection.send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))

    def head(self, answer: Answer, date: str) -> bytes:
        """Return the status line and the headers of an answer."""
        headers = [("Date", date), ("Server", SERVER), ("X-Content-Type-Options", "nosniff"), *answer.headers]
        if answer.status != HTTPStatus.NOT_MODIFIED:
            headers.append(("Content-Length", str(answer.size_bytes)))
        if not any(name == "Cache-Control" for name, _ in headers):
            headers.append(("Cache-Control", "no-store"))
        if answer.close:
            headers.append(("Connection", "close"))
        reason = HTTPStatus(answer.status).phrase.encode()
        return self._connection.send(h11.Response(status_code=answer.status, headers=headers, reason=reason))

    @property
    def has_body(self) -> bool:
        """Whether the body of the answer is sent: not for HEAD, whose answer still has the length."""
        return self._request is None or self._request.method != b"HEAD"

    def piece(self, octets: bytes) -> bytes:
        """Return a piece of the body as it is sent."""
        return self._connection.send(h11.Data(data=octets))

    def end(self) -> bytes:
        """End the answer."""
        return self._connection.send(h11.EndOfMessage())

    def next_cycle(self) -> bool:
        """Prepare for the next request; return False when this was the last of the connection."""
        if self._connection.our_state is not h11.DONE or self._connection.their_state is not h11.DONE:
            return False
        self._connection.start_next_cycle()
        self._fed_bytes = len(self._connection.trailing_data[0])
        self._request = None
        self._body.clear()
        self._body_bytes = 0
        return True
