"""One blocking AMQP connection with one channel in confirm mode: the handshake, and frames in and out.

pamqp encodes the handshake; `amqp_publisher` handles bulk traffic as octets.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from pamqp import commands

from broker import __version__
from broker.amqp.codec import decode_method, encode_method
from broker.amqp.errors import ConnectionFault
from broker.amqp.wire import FRAME_HEAD
from broker.client.address import AmqpAddress
from broker.pipeline.faults import PublishFailed

__all__ = ["CHANNEL", "FRAME_HEAD", "METHOD", "AmqpLink", "LinkLost"]

CHANNEL: Final = 1
CONNECTION_FORCED: Final = 320
PROTOCOL: Final = b"AMQP\x00\x00\x09\x01"
FRAME_MIN_BYTES: Final = 8
METHOD: Final = 1
KINDS: Final = (METHOD, 2, 3, 8)  # and content header, body, heartbeat
FRAME_MAX_BYTES: Final = 131_072  # the proposed maximum; a broker may lower it
RECEIVE_BYTES: Final = 1 << 18
CONNECT_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 2.0
# Without heartbeats the kernel has to detect that the other machine is gone.
KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60_000))
CAPABILITIES: Final = {
    "publisher_confirms": True,
    "basic.nack": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
    "slotmq.dropped_publishes": True,
}


class LinkLost(Exception):
    """The connection was lost without an error from the broker; a retry may succeed."""


class AmqpLink:
    """An open connection with channel 1 in confirm mode.

    Units: ``frame_max_bytes`` is the largest frame that may be sent.
    """

    def __init__(self, address: AmqpAddress, name: str) -> None:
        """Connect and log in. Raises: PublishFailed when the broker refuses the login; LinkLost."""
        self._address = address
        self._received = b""
        self._deadline = time.monotonic() + CONNECT_TIMEOUT_S
        self.frame_max_bytes = FRAME_MAX_BYTES
        self._socket = self._connect()
        try:
            self._handshake(name)
        except BaseException:
            self._socket.close()
            raise

    # -- octets -------------------------------------------------------------------------------------------------------

    def send(self, octets: bytes) -> None:
        """Send all octets; keep what arrives meanwhile for `receive`, because the broker may wait for us to read it.

        Raises: LinkLost.
        """
        left = memoryview(octets)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                readable, _, _ = select.select([self._socket], [self._socket], [], CONNECT_TIMEOUT_S)
                if readable:
                    self._take()
            except OSError as error:
                self._take_last_words()
                raise LinkLost(f"the connection to {self._address} is lost: {error.strerror or error}") from None

    def receive(self, timeout_s: float) -> bytes:
        """Return the received octets, waiting for some up to `timeout_s`; empty after the timeout.

        Raises: LinkLost when the connection has ended and no octets are left.
        """
        if not self._received:
            self._take()
        if not self._received and timeout_s > 0:
            select.select([self._socket], [], [], timeout_s)
            self._take()
        received, self._received = self._received, b""
        return received

    def give_back(self, octets: bytes) -> None:
        """Take back the beginning of an incomplete frame."""
        self._received = octets + self._received

    def close(self) -> None:
        """Close the connection with connection.close, if the broker still answers."""
        with suppress(LinkLost, PublishFailed, OSError):
            self._deadline = time.monotonic() + CLOSE_TIMEOUT_S
            self.send(encode_method(0, commands.Connection.Close(200, "Goodbye", 0, 0)))
            self._expect(commands.Connection.CloseOk)
        self.abort()

    def abort(self) -> None:
        """Close the socket without connection.close."""
        self._socket.close()

    def _take(self) -> None:
        """Receive the available octets. Raises: LinkLost at the end of the stream, unless octets came before it."""
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

    def _take_last_words(self) -> None:
        """Keep what the broker sent before it closed: its reason."""
        with suppress(LinkLost):
            self._take()

    # -- frames -------------------------------------------------------------------------------------------------------

    def call(self, method: Any, answer: type, channel: int = CHANNEL) -> Any:
        """Send a method and return the answer to it. Raises: PublishFailed, LinkLost."""
        self.send(encode_method(channel, method))
        return self._expect(answer)

    def _expect(self, answer: type) -> Any:
        for method in self._methods():
            if isinstance(method, answer):
                return method
            self.check(method)
        raise LinkLost(f"{self._address} did not answer within {CONNECT_TIMEOUT_S:g} s")

    def method(self, payload: bytes) -> Any:
        """Return the method in the payload of a frame. Raises: PublishFailed when it is none."""
        try:
            return decode_method(payload)
        except ConnectionFault as error:
            raise PublishFailed(f"{self._address} says what is no AMQP 0-9-1: {error}") from None

    def check(self, method: Any) -> None:
        """Handle an unsolicited method.

        Raises: PublishFailed when it closes the channel or the connection, LinkLost when the broker only shuts down.
        """
        if isinstance(method, commands.Connection.Close | commands.Channel.Close):
            text = f"{self._address}: {method.reply_text} ({method.reply_code})"
            raise LinkLost(text) if method.reply_code == CONNECTION_FORCED else PublishFailed(text)

    def _methods(self) -> Iterator[Any]:
        while (left_s := self._deadline - time.monotonic()) > 0:
            octets = self.receive(left_s)
            while len(octets) >= FRAME_MIN_BYTES:
                if octets.startswith(b"AMQP"):
                    raise PublishFailed(f"{self._address} does not speak AMQP 0-9-1")
                if octets[0] not in KINDS:
                    raise PublishFailed(f"{self._address} does not speak AMQP")
                size = FRAME_MIN_BYTES + FRAME_HEAD.unpack_from(octets)[2]
                if len(octets) < size:
                    break
                self.give_back(octets[size:])
                if octets[0] == METHOD:
                    yield self.method(octets[FRAME_HEAD.size : size - 1])
                octets = self.receive(0) if self._received else b""
            self.give_back(octets)

    # -- the handshake ------------------------------------------------------------------------------------------------

    def _connect(self) -> socket.socket:
        address = self._address
        try:
            context = address.context()
        except OSError as error:
            text = f"a certificate in the url of the broker cannot be read: {error}"
            raise PublishFailed(text) from None
        try:
            raw = socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S)
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
            raise PublishFailed(f"the certificate of {address} is not trusted: {error.verify_message}") from None
        except OSError as error:
            raw.close()
            raise LinkLost(f"no TLS with {address}: {error.strerror or error}") from None
        connected.setblocking(False)
        return connected

    def _handshake(self, name: str) -> None:
        address = self._address
        self.send(PROTOCOL)
        start = self._expect(commands.Connection.Start)
        if "PLAIN" not in (start.mechanisms or "").split():
            raise PublishFailed(f"{address} does not offer the mechanism PLAIN")
        client: dict[str, Any] = {
            "product": "slotmq pipeline",
            "version": __version__,
            "connection_name": name,
            "capabilities": CAPABILITIES,
        }
        response = f"\0{address.user}\0{address.password}"
        tune = self.call(commands.Connection.StartOk(client, "PLAIN", response, "en_US"), commands.Connection.Tune, 0)
        if tune.frame_max:
            self.frame_max_bytes = min(tune.frame_max, FRAME_MAX_BYTES)
        self.send(encode_method(0, commands.Connection.TuneOk(CHANNEL, self.frame_max_bytes, 0)))
        self.call(commands.Connection.Open(address.vhost), commands.Connection.OpenOk, 0)
        self.call(commands.Channel.Open(), commands.Channel.OpenOk)
        self.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
