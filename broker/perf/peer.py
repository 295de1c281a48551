"""AMQP client connections: the scripts of their handshakes, topology calls over a blocking socket, the bare socket."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from struct import Struct
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from broker.perf import wire
from broker.perf.faults import Refusal
from broker.perf.scanner import Look, Scanner, reason
from broker.perf.wire import EMPTY, FRAME_MAX_BYTES, Table

T = TypeVar("T")
Pending = TypeVar("Pending", bytes, memoryview)

CALL_LIMIT_S = 30.0
_CLOSE_LIMIT_S = 2.0
_NOTICES = (wire.CONNECTION_BLOCKED, wire.CONNECTION_UNBLOCKED)  # of no interest to a connection without messages
_CALLS_AT_ONCE = 100  # few enough for the answers to fit into the socket buffer meanwhile
AMQP_PORTS = MappingProxyType({"amqp": 5672, "amqps": 5671})
NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
LOGIN = re.compile(r"//\S*@")
RELAY_HEAD: Final = Struct(">Q")
ROOM_BYTES: Final = 1 << 20
_ROOM: Final = bytearray(ROOM_BYTES)  # which all connections of a process read into, one after the other
_VIEW: Final = memoryview(_ROOM)


@dataclass(frozen=True, slots=True)
class Address:
    """A broker's address and credentials."""

    host: str
    port: int
    user: str = "guest"
    password: str = "guest"
    vhost: str = "/"
    tls: bool = False
    ca_file: str | None = None
    verify: bool = True

    @classmethod
    def parse(cls, url: str, ports: Mapping[str, int] = AMQP_PORTS) -> Self:
        """Return the parts of a URL; omitted parts have RabbitMQ's defaults.

        Shapes: `ports` has the schemes, and their ports.
        Raises: ValueError, without the URL's password.
        """
        parts = urlsplit(url)
        if parts.scheme not in ports or not parts.hostname:
            raise ValueError(f"not an {':// or '.join(ports)}:// URL: {LOGIN.sub('//***@', url)}")
        try:
            port = parts.port or ports[parts.scheme]
        except ValueError:
            raise ValueError(f"the port is none: {LOGIN.sub('//***@', url)}") from None
        vhost = unquote(parts.path[1:]) if len(parts.path) > 1 else "/"
        user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
        query = parse_qs(parts.query)
        unknown = query.keys() - {"cacertfile", "verify"}
        verify = query.get("verify", ["verify_peer"])[-1]
        if unknown or verify not in ("verify_peer", "verify_none"):
            raise ValueError("a URL has ?cacertfile=FILE and ?verify=verify_none or verify_peer, and nothing else")
        ca_file = query.get("cacertfile", [None])[-1]
        tls = parts.scheme.endswith("s")
        return cls(parts.hostname, port, user, password, vhost, tls, ca_file, verify == "verify_peer")

    @property
    def family(self) -> socket.AddressFamily:
        """The address family of the host."""
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    def connect(self, limit_s: float, receive_bytes: int = 0, unsent_bytes: int = 0) -> socket.socket:
        """Return a connected socket, through TLS if the URL says so.

        Units: the kernel's receive buffer, and what it accepts before it must send; 0 for its defaults.

        Raises: OSError.
        """
        plain = socket.socket(self.family)
        try:
            plain.settimeout(limit_s)
            if receive_bytes:
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            if unsent_bytes:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent_bytes)
            plain.connect((self.host, self.port))
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self.tls:
                return plain
            return self.tls_context().wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise

    def tls_context(self) -> ssl.SSLContext:
        """Return the TLS settings that the URL asks for. Raises: OSError for a CA file that cannot be read."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


Ask = tuple[bytes, tuple[int, int]]
Script = Generator[Ask, bytes, Any]


def opening(
    address: Address, heartbeat_s: int = 0, channels: Iterable[int] = ()
) -> Generator[Ask, bytes, tuple[str, int]]:
    """Open a connection and its channels, each after the broker confirmed the one before.

    Shapes: a script is a generator: it yields a request with the name of the expected response, and receives that
    response's payload. This one returns the broker's product with its version, and the agreed size of frames.
    """
    start = yield wire.PROTOCOL_HEADER, wire.CONNECTION_START
    tune = yield wire.start_ok(address.user, address.password), wire.CONNECTION_TUNE
    channel_max, frame_max, _ = wire.TUNE.unpack_from(tune, 4)
    frame_max = min(frame_max or FRAME_MAX_BYTES, FRAME_MAX_BYTES)
    agreed = wire.method(0, wire.CONNECTION_TUNE_OK, wire.TUNE.pack(channel_max, frame_max, heartbeat_s))
    vhost = wire.short_string(address.vhost) + b"\x00\x00"
    yield agreed + wire.method(0, wire.CONNECTION_OPEN, vhost), wire.CONNECTION_OPEN_OK
    for channel in channels:
        yield wire.method(channel, wire.CHANNEL_OPEN, b"\x00"), wire.CHANNEL_OPEN_OK
    return _product(start), frame_max


def closing() -> Script:
    """Close a connection with the closing handshake of the specification."""
    yield wire.close(0, wire.CONNECTION_CLOSE), wire.CONNECTION_CLOSE_OK


def next_frame(buffer: bytearray) -> tuple[int, bytes] | None:
    """Remove the first frame from a buffer and return its type and payload; None if it is incomplete."""
    if len(buffer) < wire.FRAME_OVERHEAD_BYTES:
        return None
    kind, _, size_bytes = wire.FRAME_HEAD.unpack_from(buffer)
    whole = size_bytes + wire.FRAME_OVERHEAD_BYTES
    if len(buffer) < whole:
        return None
    payload = bytes(buffer[7 : whole - 1])
    del buffer[:whole]
    return kind, payload


def answers(payload: bytes, awaited: tuple[int, int]) -> bool:
    """Return whether a method is the awaited one, False for a notice. Raises: Refusal for any other."""
    name = wire.METHOD_HEAD.unpack_from(payload)
    if name in (wire.CONNECTION_CLOSE, wire.CHANNEL_CLOSE):
        raise Refusal(reason(payload))
    if name not in (awaited, *_NOTICES):
        raise Refusal(f"the broker sent method {name} unasked")
    return name == awaited


def send_some(end: socket.socket, pending: Pending) -> Pending:
    """Send what a non-blocking socket accepts and return the rest. Raises: OSError."""
    try:
        return pending[end.send(pending) :]
    except NOT_NOW:
        return pending


class PeerSocket:
    """A connection that is used call by call until messages flow, and then without blocking.

    Shapes: `received` holds what was not used yet, at most a part of a frame once messages flow; the answer to
    `round_trip` shows that the broker has read all that was sent before it.
    """

    channel = 0
    round_trip = b""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.received = bytearray()

    def scanner(self, *, lenient: bool = False, watch: Look | None = None) -> Scanner:
        """Return what counts the bytes that the broker sends once messages flow."""
        return Scanner(lenient=lenient, watch=watch)

    def scan(self, scan: Callable[[bytearray, int], int], whose: str, most_bytes: int = ROOM_BYTES // 2) -> bool:
        """Receive what the socket has, let `scan` count it, and return whether anything was received.

        Raises: Refusal at the end of the stream, with the role of the connection; BrokenStream, OSError.
        """
        fill = len(self.received)
        _ROOM[:fill] = self.received
        try:
            count = self.socket.recv_into(_VIEW[fill : fill + most_bytes])
        except NOT_NOW:
            return False
        if not count:
            raise Refusal(f"the broker closed a {whose}'s connection")
        end = fill + count
        self.received = _ROOM[scan(_ROOM, end) : end]
        return True

    def receive(self) -> None:
        """Wait for further bytes. Raises: Refusal, OSError."""
        chunk = self.socket.recv(65536)
        if not chunk:
            raise Refusal("the broker closed the socket")
        self.received += chunk

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


class RelayPeer(PeerSocket):
    """A connection to the bare relay: a head takes the place of AMQP's handshakes, and a byte answers it."""

    def __init__(self, address: Address, stride_bytes: int, unsent_bytes: int = 0) -> None:
        """Connect a publisher, of whose messages each `stride_bytes` are confirmed, or a consumer with 0.

        Raises: Refusal, OSError.
        """
        super().__init__(address.connect(CALL_LIMIT_S, 0, unsent_bytes))
        self.socket.sendall(RELAY_HEAD.pack(stride_bytes))
        self.receive()
        self.received.clear()


class PeerConnection(PeerSocket):
    """A connection of AMQP with one open channel."""

    def __init__(self, address: Address, channel: int, *, receive_bytes: int = 0, unsent_bytes: int = 0) -> None:
        """Connect and open `channel`; the sizes bound the kernel's buffers (0: its defaults).

        No heartbeats are agreed: a timer would distort the measurement.
        """
        super().__init__(address.connect(CALL_LIMIT_S, receive_bytes, unsent_bytes))
        self.channel = channel
        self.round_trip = wire.basic_qos(channel, 0)
        try:
            self.product, self.frame_max_bytes = self._follow(opening(address, channels=(channel,)))
        except BaseException:
            self.socket.close()
            raise

    def _follow(self, script: Generator[Ask, bytes, T]) -> T:
        """Run a script to its end and return its value."""
        try:
            asked = next(script)
            while True:
                asked = script.send(self.call(*asked))
        except StopIteration as ended:
            value: T = ended.value
            return value

    def call(self, request: bytes, answer: tuple[int, int]) -> bytes:
        """Send a method and return the payload of its answer."""
        self.socket.sendall(request)
        return self.await_method(answer)

    def await_method(self, answer: tuple[int, int]) -> bytes:
        """Return the payload of the next method frame, which must be `answer`. Raises: Refusal."""
        while not answers(payload := self._method_payload(), answer):
            continue
        return payload

    def _method_payload(self) -> bytes:
        while True:
            while (found := next_frame(self.received)) is not None:
                if found[0] == wire.METHOD:
                    return found[1]
            self.receive()

    def call_all(self, requests: Iterable[bytes], answer: tuple[int, int]) -> list[bytes]:
        """Send methods that have the same answer, many at a time, and return the payloads of the answers.

        Raises: Refusal.
        """
        answers = []
        waiting = iter(requests)
        while some := list(islice(waiting, _CALLS_AT_ONCE)):
            self.socket.sendall(b"".join(some))
            answers += [self.await_method(answer) for _ in some]
        return answers

    def declare_exchange(self, name: str, *, durable: bool, kind: str = "topic", passive: bool = False) -> None:
        """Declare an exchange (`passive`: only check that it exists)."""
        request = wire.exchange_declare(self.channel, name, kind, durable=durable, passive=passive)
        self.call(request, wire.EXCHANGE_DECLARE_OK)

    def declare_queue(self, name: str, *, durable: bool, passive: bool = False, arguments: Table = EMPTY) -> int:
        """Declare a queue (`passive`: only check that it exists) and return how many messages are ready in it."""
        request = wire.queue_declare(self.channel, name, durable=durable, passive=passive, arguments=arguments)
        return _message_count(self.call(request, wire.QUEUE_DECLARE_OK))

    def queue_counts(self, names: Sequence[str]) -> list[int]:
        """Return the number of ready messages in each of these queues. Raises: Refusal."""
        requests = (wire.queue_declare(self.channel, name, durable=False, passive=True) for name in names)
        return [_message_count(answer) for answer in self.call_all(requests, wire.QUEUE_DECLARE_OK)]

    def delete(self, queue: str, exchange: str) -> None:
        """Delete a queue and an exchange."""
        self.call(wire.queue_delete(self.channel, queue), wire.QUEUE_DELETE_OK)
        self.call(wire.exchange_delete(self.channel, exchange), wire.EXCHANGE_DELETE_OK)

    def select_confirms(self) -> None:
        """Put the channel into confirm mode."""
        self.call(wire.method(self.channel, wire.CONFIRM_SELECT, b"\x00"), wire.CONFIRM_SELECT_OK)

    def consume(self, queue: str, tag: str, *, auto_ack: bool, prefetch: int) -> None:
        """Start a consumer; `received` may already hold deliveries when this returns."""
        if prefetch:
            self.call(wire.basic_qos(self.channel, prefetch), wire.BASIC_QOS_OK)
        request = wire.basic_consume(self.channel, queue, tag, auto_ack=auto_ack)
        self.call(request, wire.BASIC_CONSUME_OK)

    def close(self) -> None:
        """Close the connection as the specification says, so that no broker logs a warning for it.

        Deliveries in flight are read and discarded.
        """
        with suppress(OSError, Refusal), self.socket:  # it may be closed already
            stop_at = time.monotonic() + _CLOSE_LIMIT_S
            self.socket.settimeout(_CLOSE_LIMIT_S)
            self.socket.sendall(wire.close(0, wire.CONNECTION_CLOSE))
            while wire.METHOD_HEAD.unpack_from(self._method_payload()) != wire.CONNECTION_CLOSE_OK:
                if time.monotonic() > stop_at:
                    break


def _message_count(declared: bytes) -> int:
    """Return the number of ready messages that a queue.declare-ok states."""
    at = 5 + declared[4]
    return int.from_bytes(declared[at : at + 4], "big")


def _product(start: bytes) -> str:
    """Return "product version" from connection.start, by searching for the two names that carry them."""
    names = rb"\x07product", rb"\x07version"
    found = filter(None, (re.search(name + rb"S\x00\x00\x00(.)", start, re.DOTALL) for name in names))
    return " ".join(start[one.end() : one.end() + one[1][0]].decode(errors="replace") for one in found)
