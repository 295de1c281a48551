"""A client's connection on a blocking socket."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from broker.amqp.client import CLOSES, ClientConnection, ClientState, Received
from broker.amqp.codec import Method
from broker.client.address import AmqpAddress

CONNECTION_FORCED: Final = 320
RECEIVE_BYTES: Final = 1 << 18
ANSWER_LIMIT_S: Final = 10.0
CLOSE_LIMIT_S: Final = 2.0
# The connection has no heartbeats, so the kernel has to detect that the other machine is unreachable.
KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60_000))


class LinkLost(Exception):
    """The broker was not reached, did not answer or is shutting down, or the link broke; a retry may succeed."""


class LinkRefused(Exception):
    """The broker refused the login or a method, with an AMQP code, or cannot be used (code 0)."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class BlockingLink:
    """An open connection; output of its `client` is sent by the next flush()."""

    def __init__(self, address: AmqpAddress, properties: Mapping[str, Any], channels: int = 1) -> None:
        """Connect, log in and open channels. Raises: LinkLost, LinkRefused."""
        self.client = ClientConnection(address.vhost, address.login, properties=properties, channels=channels)
        self._address = address
        self._received = b""
        deadline_s = time.monotonic() + ANSWER_LIMIT_S
        self._socket = self._connect()
        try:
            self._reach(ClientState.OPEN, deadline_s)
        except BaseException:
            self._socket.close()
            raise

    def flush(self) -> None:
        """Send the output, and buffer arriving input: the broker may not read on before its own output is received.

        Raises: LinkLost.
        """
        unsent = memoryview(b"".join(self.client.take_output()))
        while unsent:
            try:
                unsent = unsent[self._socket.send(unsent) :]
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                readable, _, _ = select.select([self._socket], [self._socket], [], ANSWER_LIMIT_S)
                if readable:
                    self._fill_buffer()
            except OSError as error:
                raise LinkLost(f"the connection to {self._address} is lost: {error.strerror or error}") from None

    def receive(self, timeout_s: float) -> Iterator[Received]:
        """Yield received methods; wait up to `timeout_s` for input if there is none.

        Raises: LinkLost if the connection has ended or the broker is shutting down, LinkRefused for other errors.
        """
        if not self._received:
            self._fill_buffer()
        if not self._received and timeout_s > 0:
            select.select([self._socket], [], [], timeout_s)
            self._fill_buffer()
        octets, self._received = self._received, b""
        for received in self.client.feed(octets):
            method = received.method
            if type(method) in CLOSES:
                text = f"{self._address}: {method.reply_text} ({method.reply_code})"
                raise LinkLost(text) if method.reply_code == CONNECTION_FORCED else LinkRefused(text, method.reply_code)
            yield received
        if self.client.failure:
            raise LinkRefused(f"{self._address}: {self.client.failure}")

    def call(self, channel: int, method: Method) -> Received:
        """Send a method and return its answer; no other method may arrive first. Raises: LinkLost, LinkRefused."""
        self.client.send(channel, method)
        self.flush()
        deadline_s = time.monotonic() + ANSWER_LIMIT_S
        while (left_s := deadline_s - time.monotonic()) > 0:
            for received in self.receive(left_s):
                return received
        raise self._timed_out()

    def close(self) -> None:
        """Send connection.close, wait at most CLOSE_LIMIT_S for the answer, and close the socket."""
        with suppress(LinkLost, LinkRefused, OSError):
            self.client.close("Goodbye")
            self._reach(ClientState.CLOSED, time.monotonic() + CLOSE_LIMIT_S)
        self.abort()

    def abort(self) -> None:
        self._socket.close()

    def _reach(self, state: ClientState, deadline_s: float) -> None:
        """Send and receive until the connection is in a state. Raises: LinkLost, LinkRefused."""
        self.flush()
        while self.client.state is not state:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise self._timed_out()
            for _received in self.receive(left_s):
                pass
            self.flush()

    def _timed_out(self) -> LinkLost:
        return LinkLost(f"{self._address} did not answer within {ANSWER_LIMIT_S:g} s")

    def _fill_buffer(self) -> None:
        """Append the available octets to the buffer. Raises: LinkLost if the link broke and the buffer is empty."""
        pieces = [self._received]
        try:
            while piece := self._socket.recv(RECEIVE_BYTES):
                pieces.append(piece)
            lost = "the broker closed it"
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            lost = ""
        except OSError as error:
            lost = error.strerror or str(error)
        self._received = b"".join(pieces)
        if lost and not self._received:
            raise LinkLost(f"the connection to {self._address} is lost: {lost}")

    def _connect(self) -> socket.socket:
        address = self._address
        try:
            context = address.context()
        except OSError as error:
            raise LinkRefused(f"a certificate in the url of the broker cannot be read: {error}") from None
        try:
            raw = socket.create_connection((address.host, address.port), ANSWER_LIMIT_S)
        except OSError as error:
            raise LinkLost(f"no broker answers at {address}: {error.strerror or error}") from None
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            if hasattr(socket, option):
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        try:
            connected = raw if context is None else context.wrap_socket(raw, server_hostname=address.host)
        except ssl.SSLCertVerificationError as error:
            raw.close()
            raise LinkRefused(f"the certificate of {address} is not trusted: {error.verify_message}") from None
        except OSError as error:
            raw.close()
            raise LinkLost(f"no TLS with {address}: {error.strerror or error}") from None
        connected.setblocking(False)
        return connected
