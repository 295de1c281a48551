"""One client's connection: uvicorn's HTTP/1.1 protocol with this broker's limits.

uvicorn parses requests and runs the application. This module adds deadlines and limits, JSON answers to malformed
requests, and a close that does not cut off the last answer.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Protocol

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from broker.event_log import get_logger
from broker.manage.answers import encoded
from broker.manage.client import ApiClient
from broker.manage.refusal import HttpRefused
from broker.net.tls import peer_of

LINGER_S: Final = 2.0
LINGER_BYTES: Final = 1 << 20
AMQP: Final = b"AMQP\x00"  # an AMQP client would wait for an answer, and the broker for the end of the line
PIECE_BYTES: Final = 256 << 10
UNREAD_MAX_BYTES: Final = 1 << 20  # bytes of bodies that one connection may send after their requests are answered

_log = get_logger()
_no_log = logging.getLogger("slotmq.uvicorn")  # errors become answers or events of this broker
_no_log.disabled = True


class LingeringTransport(asyncio.Transport):
    """A transport whose `close` lets the client read the last answer.

    Without TLS, `close` first ends only the broker's side. It then waits briefly for the client to close, and discards
    input: when a socket with unread input is closed, the kernel discards output that the client has not read.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._closing = False
        self._discardable_bytes = LINGER_BYTES
        self._linger: asyncio.TimerHandle | None = None

    @property
    def socket(self) -> asyncio.Transport:
        return self._transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.is_closing():
            self._transport.write(data)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """Send the remaining output, then close."""
        if self.is_closing():
            return
        self._closing = True
        self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            try:
                self._transport.write_eof()
            except OSError:  # the client has reset the connection
                self._transport.abort()
        else:  # TLS has its own close
            self._transport.close()

    def close_idle(self) -> None:
        """Close a connection that has no request to answer, at once if it has no output left."""
        if self._transport.get_write_buffer_size():
            self.close()
        else:
            self._transport.abort()

    def abort(self) -> None:
        self._transport.abort()

    def discard(self, size_bytes: int) -> None:
        """Count input that is discarded during the close; abort if there is too much."""
        self._discardable_bytes -= size_bytes
        if self._discardable_bytes < 0:
            self._transport.abort()

    def forget(self) -> None:
        """Cancel the timer: the connection has ended."""
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None


class Places(Protocol):
    """The limits of a port on its clients. See `manage.listener.ManageListener`."""

    def enter(self, client: ClientProtocol, descriptor: int) -> None: ...
    def admit(self, client: ClientProtocol, user: str) -> None: ...
    def release(self, client: ClientProtocol) -> None: ...
    def leave(self, client: ClientProtocol) -> None: ...


class ClientProtocol(H11Protocol):
    """The protocol of one client. Units: `timeout_s` limits how long the head of a request may take.

    Invariant: no request is read while another one is answered, so pipelined requests wait in the socket's buffers.
    """

    def __init__(self, config: Config, state: ServerState, timeout_s: float, places: Places) -> None:
        """`places` limits the clients."""
        super().__init__(config, state, {})
        self.logger = _no_log
        self.access_log = False
        self._timeout_s = timeout_s
        self._places = places
        self._deadline: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        self._end: LingeringTransport

    # -- the connection -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._end = LingeringTransport(transport)
        transport.set_write_buffer_limits(high=PIECE_BYTES)
        super().connection_made(self._end)
        admit = partial(self._places.admit, self)
        self.client_end = ApiClient(
            peer_of(transport), transport.is_closing, transport.abort, self._timeout_s, admit, self._switch
        )
        self.app_state = {"client": self.client_end}
        found = transport.get_extra_info("socket")
        self._places.enter(self, -1 if found is None else found.fileno())
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._end.forget()
        self.client_end.end()
        super().connection_lost(exc)
        self._places.leave(self)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection open if the client has closed its side and still waits for an answer."""
        if self._end.is_closing() or not self._answering or self.cycle.more_body or self.scheme == "https":
            return False
        self.last()
        return True

    @property
    def _answering(self) -> bool:
        """Whether the application is handling a request."""
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn's annotation lacks None
        return cycle is not None and not cycle.response_complete

    @property
    def network(self) -> str:
        return self.client_end.peer.network

    @property
    def delays(self) -> bool:
        """Whether the answer waits for the client to send the rest of the body or to read."""
        return self._answering and (self.cycle.more_body or self.flow.write_paused)

    def last(self) -> None:
        """Accept no further request: close now, or after the current answer."""
        self.client_end.accept_no_more()
        if self._answering:
            self.cycle.keep_alive = False  # uvicorn has no method for this
            if self.client_end.endless:
                self._end.abort()
        else:
            self._end.close_idle()

    def abort(self) -> None:
        self._end.abort()

    def _switch(self, headers: Sequence[tuple[str, str]]) -> tuple[asyncio.Transport, bytes] | None:
        """Answer 101, and return the transport and early input for another protocol, or None while closing."""
        if self._end.is_closing():
            return None
        self._cancel_deadline()
        answer = h11.InformationalResponse(status_code=101, headers=list(headers), reason=b"Switching Protocols")
        self._end.write(self.conn.send(answer) or b"")
        sent_ahead = self.conn.trailing_data[0]
        super().connection_lost(ConnectionResetError())  # tells uvicorn that the client has disconnected
        self._places.leave(self)
        self.client_end.forget()
        return self._end.socket, sent_ahead

    # -- requests -----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._end.is_closing() or self.client_end.fault is not None:
            self._end.discard(len(data))
            return
        if self.conn.their_state is h11.SEND_BODY and not self._answering:
            self._unread_bytes += len(data)
            if self._unread_bytes > UNREAD_MAX_BYTES:
                self._end.close()
                return
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._places.release(self)
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Answer a malformed request, or a head that is too long."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if status == 431:
            limit_bytes = self.config.h11_max_incomplete_event_size
            self._refuse(HttpRefused(431, f"a header has at most {limit_bytes} bytes"))
        else:
            self._refuse(
                HttpRefused(status if status == 501 else 400, f"not an HTTP request: {str(error or msg)[:200]}")
            )

    def _refuse(self, refused: HttpRefused) -> None:
        """Answer instead of the application, and close.

        If the application is handling the request, it gets the error when it reads the body.
        """
        self._cancel_deadline()
        self._unset_keepalive_if_required()
        if self._answering:
            self.client_end.fail(refused)
            self.last()
            self.cycle.message_event.set()
            return
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._end.close()
            return
        body = encoded(refused.fields()) + b"\n"
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")]
        head = h11.Response(status_code=refused.status, headers=headers, reason=b"")
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self._end.write(self.conn.send(event) or b"")
        self._end.close()

    # -- the deadline -------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Set the deadline for the next head or the rest of a body; cancel it while the application answers."""
        if self._answering or self._end.is_closing():
            self._cancel_deadline()
        elif self.conn.trailing_data[0].startswith(AMQP):
            self._refuse(HttpRefused(400, "not an HTTP request: AMQP has another port"))
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self._timeout_s, self._time_out)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _time_out(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(HttpRefused(408, f"a request takes at most {self._timeout_s:g} s"))
        else:
            self._end.close_idle()
