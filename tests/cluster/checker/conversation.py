"""A client's connection with one channel, which records what it sends and receives.

Deliveries and confirms are parsed here, byte by byte: pamqp would cost ten times as much, and the clients share two
cores with the nodes that they test.
"""

from __future__ import annotations

import select
import struct
import time
from collections import deque
from typing import Any, Final, TypeVar

import pamqp.frame
from pamqp import commands

from tests.broker_process import BrokerAddress
from tests.cluster.checker.history import Delivery, History, Message, Session, Transaction
from tests.raw_client import BODY, FRAME_END, HEADER, METHOD, RawClient, method_frame

Reply = TypeVar("Reply")

ANSWER_S: Final = 60.0
"""How long a node may take to answer: longer than any fault lasts, on a machine that does other work too."""
READ_BYTES: Final = 1 << 18
PIECE_BYTES: Final = 65_536
PERSISTENT_FLAGS: Final = 0x1000
HEADERS_FLAG: Final = 0x2000
DELIVER, GET_OK, ACK, NACK = (60, 60), (60, 71), (60, 80), (60, 120)
CONTENT: Final = {DELIVER, GET_OK}


class Gone(Exception):
    """The connection ended."""


class Conversation:
    """A connection to one node, with channel 1 open. Raises: Gone from every method when the connection has ended."""

    def __init__(self, address: BrokerAddress, history: History, client: str, node: str) -> None:
        raw = RawClient(address.host, address.port)
        try:
            raw.open()
            raw.open_channel(1)
        except BaseException:
            raw.socket.close()
            raise
        self.socket = raw.socket
        self.history = history
        self.session: Session = history.open(client, node)
        self.inbox: deque[tuple[int, Delivery]] = deque()
        self.blocked = False
        self._buffer = raw._buffer
        self._replies: deque[Any] = deque()
        self._unconfirmed: deque[tuple[int, Message]] = deque()
        self._published = 0
        self._heads: dict[tuple[str, str], bytes] = {}
        self._queues: dict[str, str] = {}  # of each consumer tag
        self._asked = ""  # the queue of the basic.get under way
        self._incoming: tuple[tuple[int, int], bytes] | None = None
        self._missing_bytes = 0
        self._pieces: list[bytes] = []
        self._since = time.monotonic()

    # ---- what a client does

    def call(self, method: Any, kind: type[Reply]) -> Reply:
        """Send a method and return its reply; deliveries and confirms that arrive before it are recorded."""
        self.send(method_frame(1, method))
        end = time.monotonic() + ANSWER_S
        while not self._replies:
            assert time.monotonic() < end, f"no {kind.__name__} within {ANSWER_S:g} s from {self.session.node}"
            self.pump(0.5)
        reply = self._replies.popleft()
        assert isinstance(reply, kind), f"expected {kind.__name__}, got {reply!r}"
        return reply

    def confirm_select(self) -> None:
        """Turn confirms on."""
        self.call(commands.Confirm.Select(), commands.Confirm.SelectOk)

    def consume(self, queue: str, prefetch: int) -> str:
        """Start a consumer and return its tag."""
        self.call(commands.Basic.Qos(prefetch_count=prefetch), commands.Basic.QosOk)
        tag = f"{self.session.client}-{self.session.number}-{queue}"
        self._queues[tag] = queue
        self.call(commands.Basic.Consume(queue=queue, consumer_tag=tag), commands.Basic.ConsumeOk)
        return tag

    def cancel(self, tag: str) -> None:
        """End a consumer."""
        self.call(commands.Basic.Cancel(consumer_tag=tag), commands.Basic.CancelOk)

    def count(self, queue: str) -> int:
        """Return the number of ready messages of a queue, as the node reports it."""
        answer = self.call(commands.Queue.Declare(queue=queue, passive=True), commands.Queue.DeclareOk)
        return int(answer.message_count or 0)

    def get(self, queue: str) -> tuple[int, Delivery] | None:
        """Fetch a message. No consumer may be active on this channel."""
        self._asked = queue
        self.send(method_frame(1, commands.Basic.Get(queue=queue)))
        end = time.monotonic() + ANSWER_S
        while not self._replies and not self.inbox:
            assert time.monotonic() < end, f"no basic.get-ok within {ANSWER_S:g} s from {self.session.node}"
            self.pump(0.5)
        if self.inbox:
            return self.inbox.popleft()
        reply = self._replies.popleft()
        assert isinstance(reply, commands.Basic.GetEmpty), reply
        return None

    def publish(
        self,
        exchange: str,
        key: str,
        queues: tuple[str, ...],
        size_bytes: int,
        transaction: Transaction | None = None,
        *,
        delay_ms: int = 0,
    ) -> bytes:
        """Record a persistent message for these queues, and return its frames, which the caller sends."""
        message = self.history.publish(self.session, queues, size_bytes, transaction)
        if transaction is None:
            self._published += 1
            self._unconfirmed.append((self._published, message))
        head = self._heads.get((exchange, key))
        if head is None:
            head = method_frame(1, commands.Basic.Publish(exchange=exchange, routing_key=key))
            self._heads[exchange, key] = head
        body = message.body()
        if delay_ms:
            table = b"\x07x-delayI" + struct.pack(">i", delay_ms)
            head_of = struct.pack(">HHQHI", 60, 0, len(body), PERSISTENT_FLAGS | HEADERS_FLAG, len(table))
            header = head_of + table + b"\x02"
        else:
            header = struct.pack(">HHQHB", 60, 0, len(body), PERSISTENT_FLAGS, 2)
        return head + _frame(HEADER, header) + b"".join(_frame(BODY, piece) for piece in _pieces(body))

    @property
    def unconfirmed(self) -> int:
        """The number of unanswered publishes."""
        return len(self._unconfirmed)

    def await_confirms(self, at_most: int = 0) -> None:
        """Wait until at most this many publishes are unanswered."""
        end = time.monotonic() + ANSWER_S
        while len(self._unconfirmed) > at_most:
            assert time.monotonic() < end, f"no confirm within {ANSWER_S:g} s from {self.session.node}"
            self.pump(0.5)

    def settle(self, tag: int, deliveries: list[Delivery], *, multiple: bool = False) -> None:
        """Ack a delivery, or all up to it."""
        now = time.monotonic()
        for delivery in deliveries:
            delivery.settled_at = now
        self.history.settlements += len(deliveries)
        self.send(method_frame(1, commands.Basic.Ack(delivery_tag=tag, multiple=multiple)))

    def requeue(self, tag: int, deliveries: list[Delivery], *, multiple: bool = False) -> None:
        """Nack a delivery, or all up to it, with requeue."""
        now = time.monotonic()
        for delivery in deliveries:
            delivery.returned_at = now
        self.send(method_frame(1, commands.Basic.Nack(delivery_tag=tag, multiple=multiple, requeue=True)))

    def reject(self, tag: int, delivery: Delivery) -> None:
        """Reject a delivery without requeue."""
        delivery.settled_at = time.monotonic()
        delivery.rejected = True
        self.history.settlements += 1
        self.send(method_frame(1, commands.Basic.Reject(delivery_tag=tag, requeue=False)))

    def close(self) -> None:
        """Close the connection cleanly."""
        close = commands.Connection.Close(reply_code=200, reply_text="bye", class_id=0, method_id=0)
        self.send(method_frame(0, close))
        try:
            while not self._replies or not isinstance(self._replies[-1], commands.Connection.CloseOk):
                self.pump(0.5)
        except Gone:
            pass
        self.drop()

    def drop(self) -> None:
        """Close the socket, as the end of the client's process does."""
        self.session.ended_at = time.monotonic()
        self.socket.close()

    # ---- bytes

    def send(self, *pieces: bytes) -> None:
        """Send frames. The next `pump` reports a connection that has ended."""
        try:
            self.socket.sendall(b"".join(pieces))
        except TimeoutError:
            raise AssertionError(f"{self.session.node} read nothing for 20 s") from None
        except OSError as error:
            self._read_rest()
            raise Gone(str(error)) from error

    def pump(self, timeout_s: float) -> bool:
        """Read the available bytes, or wait up to this time for some; return whether any arrived."""
        try:
            if not select.select([self.socket], [], [], 0)[0]:
                if not self._buffer and self._incoming is None:
                    self._since = time.monotonic()  # the node sent whatever follows after this moment
                if not select.select([self.socket], [], [], timeout_s)[0]:
                    return False
            piece = self.socket.recv(READ_BYTES)
        except (OSError, ValueError) as error:  # reset, or closed by another thread
            raise Gone(str(error)) from error
        if not piece:
            raise Gone("end of file")
        self._buffer += piece
        for kind, channel, payload in self._cut():
            self._take(kind, channel, payload)
        return True

    def _read_rest(self) -> None:
        """Read and record what the node sent before it ended the connection."""
        try:
            while self.pump(0):
                pass
        except Gone:
            pass

    def _cut(self) -> list[tuple[int, int, bytes]]:
        """Remove the complete frames from the buffer and return them."""
        buffer, at = self._buffer, 0
        frames = []
        while len(buffer) - at >= 8:
            kind, channel, size = struct.unpack_from(">BHI", buffer, at)
            end = at + 8 + size
            if end > len(buffer):
                break
            assert buffer[end - 1] == FRAME_END, buffer[at:end]
            frames.append((kind, channel, buffer[at + 7 : end - 1]))
            at = end
        self._buffer = buffer[at:]
        return frames

    def _take(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == METHOD:
            self._take_method(channel, payload)
        elif kind == HEADER:
            self._missing_bytes = int.from_bytes(payload[4:12], "big")
            self._pieces = []
        elif kind == BODY:
            self._pieces.append(payload)
            self._missing_bytes -= len(payload)
        if kind in (HEADER, BODY) and not self._missing_bytes:
            self._deliver(b"".join(self._pieces))

    def _take_method(self, channel: int, payload: bytes) -> None:
        method = struct.unpack_from(">HH", payload)
        if method in CONTENT:
            self._incoming = method, payload
        elif method in (ACK, NACK):
            tag, multiple = struct.unpack_from(">QB", payload, 4)
            assert multiple & 1 or self._unconfirmed[0][0] == tag, "confirms are in order"
            while self._unconfirmed and self._unconfirmed[0][0] <= tag:
                self.history.confirm(self._unconfirmed.popleft()[1], refused=method == NACK)
        else:
            self._take_rare(channel, pamqp.frame.unmarshal(_frame(METHOD, payload, channel))[2])

    def _take_rare(self, channel: int, value: Any) -> None:
        if isinstance(value, commands.Connection.Close):
            self.session.closed_with = value.reply_code
            self.socket.sendall(method_frame(0, commands.Connection.CloseOk()))
            raise Gone(f"{value.reply_code} {value.reply_text}")
        if isinstance(value, commands.Connection.Blocked | commands.Connection.Unblocked):
            self.blocked = isinstance(value, commands.Connection.Blocked)
            return
        assert not isinstance(value, commands.Channel.Close), f"{value.reply_code} {value.reply_text}"
        assert not isinstance(value, commands.Basic.Cancel), f"the node cancelled the consumer {value.consumer_tag}"
        self._replies.append(value)

    def _deliver(self, body: bytes) -> None:
        assert self._incoming is not None
        method, payload = self._incoming
        self._incoming = None
        place = 4
        queue = self._asked
        if method == DELIVER:
            place += 1 + payload[4]
            queue = self._queues[payload[5:place].decode()]
        tag, redelivered = struct.unpack_from(">QB", payload, place)
        delivery = self.history.deliver(self.session, queue, body, redelivered=bool(redelivered), since=self._since)
        self.inbox.append((tag, delivery))


def _frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def _pieces(body: bytes) -> list[bytes]:
    return [body[at : at + PIECE_BYTES] for at in range(0, len(body), PIECE_BYTES)]
