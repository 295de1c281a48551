"""Client connections: AMQP handshakes as scripts, topology calls over a blocking socket, and the raw socket."""

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
from broker.perf.scanner import BodyCallback, Scanner, reason
from broker.perf.wire import EMPTY, FRAME_MAX_BYTES, Table

T = TypeVar("T")
Pending = TypeVar("Pending", bytes, memoryview)

CALL_LIMIT_S = 30.0
_CLOSE_LIMIT_S = 2.0
_NOTICES = (wire.CONNECTION_BLOCKED, wire.CONNECTION_UNBLOCKED)  # ignored until messages flow
_CALLS_AT_ONCE = 100  # few enough that the answers fit into the socket buffer before the first is read
AMQP_PORTS = MappingProxyType({"amqp": 5672, "amqps": 5671})
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
CREDENTIALS = re.compile(r"//\S*@")
RELAY_HEAD: Final = Struct(">Q")
BUFFER_BYTES: Final = 1 << 20
_BUFFER: Final = bytearray(BUFFER_BYTES)  # shared by all connections of a process, each read in turn
_VIEW: Final = memoryview(_BUFFER)


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

        Shapes: `ports` maps the accepted schemes to their default ports.
        Raises: ValueError, whose text omits the URL's password.
        """
        not_one = f"not an {':// or '.join(ports)}:// URL: {CREDENTIALS.sub('//***@', url)}"
        try:
            parts = urlsplit(url)
            (parts.hostname or "").encode("idna")  # as the resolver does
        except ValueError:  # whose text may contain the password
            raise ValueError(not_one) from None
        if parts.scheme not in ports or not parts.hostname:
            raise ValueError(not_one)
        try:
            port = parts.port or ports[parts.scheme]
        except ValueError:
            raise ValueError(f"the port is not valid: {CREDENTIALS.sub('//***@', url)}") from None
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
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    def connect(self, limit_s: float, receive_bytes: int = 0, unsent_bytes: int = 0) -> socket.socket:
        """Return a connected socket, through TLS if the URL says so.

        Shapes: `receive_bytes` is the size of the kernel's receive buffer, `unsent_bytes` a limit of the bytes that the
        kernel accepts before it has sent them; 0 for the kernel's defaults.
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
        """Return the TLS context that the URL describes. Raises: OSError for a CA file that cannot be read."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


Ask = tuple[bytes, tuple[int, int]]  # a request, and the method that answers it
Script = Generator[Ask, bytes, Any]


def opening(
    address: Address, heartbeat_s: int = 0, channels: Iterable[int] = ()
) -> Generator[Ask, bytes, tuple[str, int]]:
    """Open a connection and its channels, each after the broker has confirmed the previous one.

    Shapes: a script is a generator that yields a request with the method of the expected answer and receives that
    answer's payload. This one returns the broker's product with its version, and the agreed frame size.
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
    """Remove the first frame from a buffer, and return its type and payload, or None if it is incomplete."""
    if len(buffer) < wire.FRAME_OVERHEAD_BYTES:
        return None
    kind, _, size_bytes = wire.FRAME_HEAD.unpack_from(buffer)
    whole = size_bytes + wire.FRAME_OVERHEAD_BYTES
    if len(buffer) < whole:
        return None
    payload = bytes(buffer[7 : whole - 1])
    del buffer[:whole]
    return kind, payload


def is_answer(payload: bytes, awaited: tuple[int, int]) -> bool:
    """Return whether a method is the awaited one; False for a notice. Raises: Refusal for any other method."""
    name = wire.METHOD_HEAD.unpack_from(payload)
    if name in (wire.CONNECTION_CLOSE, wire.CHANNEL_CLOSE):
        raise Refusal(reason(payload))
    if name not in (awaited, *_NOTICES):
        raise Refusal(f"the broker sent method {name} unexpectedly")
    return name == awaited


def send_some(end: socket.socket, pending: Pending) -> Pending:
    """Send what a non-blocking socket accepts, and return the rest. Raises: OSError."""
    try:
        return pending[end.send(pending) :]
    except WOULD_BLOCK:
        return pending


class PeerSocket:
    """A connection for blocking calls until messages flow, and non-blocking from then on.

    Shapes: `received` holds the bytes not processed yet, at most a part of a frame once messages flow; the answer to
    `round_trip` proves that the broker has read everything sent before it.
    """

    channel = 0
    round_trip = b""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.received = bytearray()

    def scanner(self, *, lenient: bool = False, on_bodies: BodyCallback | None = None) -> Scanner:
        """Return the scanner of the bytes that the broker sends once messages flow."""
        return Scanner(lenient=lenient, on_bodies=on_bodies)

    def scan(self, scan: Callable[[bytearray, int], int], whose: str, read_max_bytes: int = BUFFER_BYTES // 2) -> bool:
        """Receive what has arrived, pass it to `scan`, and return whether anything was received.

        Raises: Refusal at the end of the stream, naming the role of the connection; BrokenStream, OSError.
        """
        fill = len(self.received)
        _BUFFER[:fill] = self.received
        try:
            count = self.socket.recv_into(_VIEW[fill : fill + read_max_bytes])
        except WOULD_BLOCK:
            return False
        if not count:
            raise Refusal(f"the broker closed a {whose}'s connection")
        end = fill + count
        self.received = _BUFFER[scan(_BUFFER, end) : end]
        return True

    def receive(self) -> None:
        """Wait for more bytes. Raises: Refusal, OSError."""
        chunk = self.socket.recv(65536)
        if not chunk:
            raise Refusal("the broker closed the socket")
        self.received += chunk

    def close(self) -> None:
        self.socket.close()


class RelayPeer(PeerSocket):
    """A connection to the bare relay: a header replaces AMQP's handshakes, and the relay answers it with one byte."""

    def __init__(self, address: Address, stride_bytes: int, unsent_bytes: int = 0) -> None:
        """Connect a publisher with messages of `stride_bytes`, or a consumer if that is 0. Raises: Refusal, OSError."""
        super().__init__(address.connect(CALL_LIMIT_S, 0, unsent_bytes))
        self.socket.sendall(RELAY_HEAD.pack(stride_bytes))
        self.receive()
        self.received.clear()


class PeerConnection(PeerSocket):
    """An AMQP connection with one open channel."""

    def __init__(self, address: Address, channel: int, *, receive_bytes: int = 0, unsent_bytes: int = 0) -> None:
        """Connect and open `channel`; the sizes limit the kernel's buffers, 0 for its defaults.

        No heartbeat is negotiated: its timer would distort the measurement. Raises: Refusal, OSError.
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
        """Send a method and return the payload of its answer. Raises: Refusal, OSError."""
        self.socket.sendall(request)
        return self.await_method(answer)

    def await_method(self, answer: tuple[int, int]) -> bytes:
        """Return the payload of the next method frame, which must be `answer`. Raises: Refusal, OSError."""
        while not is_answer(payload := self._method_payload(), answer):
            continue
        return payload

    def _method_payload(self) -> bytes:
        while True:
            while (found := next_frame(self.received)) is not None:
                if found[0] == wire.METHOD:
                    return found[1]
            self.receive()

    def call_all(self, requests: Iterable[bytes], answer: tuple[int, int]) -> list[bytes]:
        """Send batches of methods with one kind of answer; return the answers' payloads. Raises: Refusal, OSError."""
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
        """Declare a queue (`passive`: only check that it exists), and return the number of its ready messages."""
        request = wire.queue_declare(self.channel, name, durable=durable, passive=passive, arguments=arguments)
        return _message_count(self.call(request, wire.QUEUE_DECLARE_OK))

    def queue_counts(self, names: Sequence[str]) -> list[int]:
        """Return the number of ready messages in each of these queues. Raises: Refusal, OSError."""
        requests = (wire.queue_declare(self.channel, name, durable=False, passive=True) for name in names)
        return [_message_count(answer) for answer in self.call_all(requests, wire.QUEUE_DECLARE_OK)]

    def delete(self, queue: str, exchange: str) -> None:
        self.call(wire.queue_delete(self.channel, queue), wire.QUEUE_DELETE_OK)
        self.call(wire.exchange_delete(self.channel, exchange), wire.EXCHANGE_DELETE_OK)

    def select_confirms(self) -> None:
        self.call(wire.method(self.channel, wire.CONFIRM_SELECT, b"\x00"), wire.CONFIRM_SELECT_OK)

    def consume(self, queue: str, tag: str, *, auto_ack: bool, prefetch: int) -> None:
        """Start a consumer; `received` may already contain deliveries when this returns."""
        if prefetch:
            self.call(wire.basic_qos(self.channel, prefetch), wire.BASIC_QOS_OK)
        request = wire.basic_consume(self.channel, queue, tag, auto_ack=auto_ack)
        self.call(request, wire.BASIC_CONSUME_OK)

    def close(self) -> None:
        """Close the connection with the handshake of the specification, so that the broker logs no warning.

        Deliveries in flight are read and discarded.
        """
        with suppress(OSError, Refusal), self.socket:  # it may already be closed
            stop_at = time.monotonic() + _CLOSE_LIMIT_S
            self.socket.settimeout(_CLOSE_LIMIT_S)
            self.socket.sendall(wire.close(0, wire.CONNECTION_CLOSE))
            while wire.METHOD_HEAD.unpack_from(self._method_payload()) != wire.CONNECTION_CLOSE_OK:
                if time.monotonic() > stop_at:
                    break


def _message_count(declared: bytes) -> int:
    """Return the number of ready messages in a queue.declare-ok."""
    at = 5 + declared[4]
    return int.from_bytes(declared[at : at + 4], "big")


def _product(start: bytes) -> str:
    """Return "product version" from connection.start, by searching its bytes for the two names."""
    names = rb"\x07product", rb"\x07version"
    found = filter(None, (re.search(name + rb"S\x00\x00\x00(.)", start, re.DOTALL) for name in names))
    return " ".join(start[one.end() : one.end() + one[1][0]].decode(errors="replace") for one in found)
