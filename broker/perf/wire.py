"""Encode the few AMQP 0-9-1 frames that a load generator sends, without code of the broker.

With an independent encoder, a mistake in the broker's own codec cannot cancel itself out in a benchmark.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from types import MappingProxyType

Table = Mapping[str, str | int | bool]

EMPTY: Table = MappingProxyType({})
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = b"\xce"
FRAME_OVERHEAD_BYTES = 8  # type, channel, size, end octet (section 4.2.3)

CONNECTION_START, CONNECTION_START_OK = (10, 10), (10, 11)  # class and method
CONNECTION_TUNE, CONNECTION_TUNE_OK = (10, 30), (10, 31)
CONNECTION_OPEN, CONNECTION_OPEN_OK = (10, 40), (10, 41)
CONNECTION_CLOSE, CONNECTION_CLOSE_OK = (10, 50), (10, 51)
CONNECTION_BLOCKED, CONNECTION_UNBLOCKED = (10, 60), (10, 61)
CHANNEL_OPEN, CHANNEL_OPEN_OK = (20, 10), (20, 11)
CHANNEL_CLOSE, CHANNEL_CLOSE_OK = (20, 40), (20, 41)
EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK = (40, 10), (40, 11)
EXCHANGE_DELETE, EXCHANGE_DELETE_OK = (40, 20), (40, 21)
QUEUE_DECLARE, QUEUE_DECLARE_OK = (50, 10), (50, 11)
QUEUE_BIND, QUEUE_BIND_OK = (50, 20), (50, 21)
QUEUE_UNBIND, QUEUE_UNBIND_OK = (50, 50), (50, 51)
QUEUE_DELETE, QUEUE_DELETE_OK = (50, 40), (50, 41)
BASIC_QOS, BASIC_QOS_OK = (60, 10), (60, 11)
BASIC_CONSUME, BASIC_CONSUME_OK = (60, 20), (60, 21)
BASIC_CANCEL, BASIC_CANCEL_OK = (60, 30), (60, 31)
BASIC_PUBLISH, BASIC_RETURN, BASIC_DELIVER = (60, 40), (60, 50), (60, 60)
BASIC_ACK, BASIC_NACK = (60, 80), (60, 120)
CONFIRM_SELECT, CONFIRM_SELECT_OK = (85, 10), (85, 11)

CONSUMER_TAG = "bench"
PUBLISH_CHANNEL = 1
CONSUME_CHANNEL = 2  # differs from the publisher's channel, so that a broker must write each frame header
FRAME_HEAD = Struct(">BHI")
METHOD_HEAD = Struct(">HH")
CONTENT_HEAD = Struct(">HHQH")
TUNE = Struct(">HIH")
FRAME_MAX_BYTES = 131_072  # what brokers usually offer, and the maximum that this client accepts

_ACK_FRAME = Struct(">BHIHHQBB")
_DELIVERY_MODE_FLAG = 1 << 12
_CAPABILITIES = (
    "publisher_confirms basic.nack consumer_cancel_notify connection.blocked authentication_failure_close".split()
)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return one complete frame."""
    return FRAME_HEAD.pack(kind, channel, len(payload)) + payload + FRAME_END


def method(channel: int, name: tuple[int, int], arguments: bytes = b"") -> bytes:
    """Return the method frame `name` (class, method) with its encoded arguments."""
    return frame(METHOD, channel, METHOD_HEAD.pack(*name) + arguments)


def short_string(text: str) -> bytes:
    """Return `text` as an AMQP short string."""
    raw = text.encode()
    return bytes((len(raw),)) + raw


def long_string(raw: bytes) -> bytes:
    """Return `raw` as an AMQP long string."""
    return len(raw).to_bytes(4, "big") + raw


def table(fields: Table) -> bytes:
    """Return a field table of strings, 64-bit integers and booleans."""
    return long_string(b"".join(short_string(name) + _field(value) for name, value in fields.items()))


def _field(value: str | int | bool) -> bytes:
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int):
        return b"l" + value.to_bytes(8, "big", signed=True)
    return b"S" + long_string(value.encode())


def start_ok(user: str, password: str) -> bytes:
    """Return connection.start-ok with PLAIN credentials."""
    product = short_string("product") + _field("slotmq-perf")
    capabilities = short_string("capabilities") + b"F" + table(dict.fromkeys(_CAPABILITIES, True))
    login = short_string("PLAIN") + long_string(f"\0{user}\0{password}".encode())
    arguments = long_string(product + capabilities) + login + short_string("en_US")
    return method(0, CONNECTION_START_OK, arguments)


def exchange_declare(channel: int, name: str, kind: str, *, durable: bool, passive: bool = False) -> bytes:
    """Return exchange.declare."""
    flags = bytes(((0b00010 if durable else 0) | passive,))
    arguments = b"\x00\x00" + short_string(name) + short_string(kind) + flags + long_string(b"")
    return method(channel, EXCHANGE_DECLARE, arguments)


def queue_declare(channel: int, name: str, *, durable: bool, passive: bool = False, arguments: Table = EMPTY) -> bytes:
    """Return queue.declare of a queue that outlives its connection."""
    flags = bytes(((0b00010 if durable else 0) | passive,))
    return method(channel, QUEUE_DECLARE, b"\x00\x00" + short_string(name) + flags + table(arguments))


def queue_bind(channel: int, queue: str, exchange: str, binding_key: str) -> bytes:
    """Return queue.bind."""
    return method(channel, QUEUE_BIND, _binding(queue, exchange, binding_key) + b"\x00" + long_string(b""))


def queue_unbind(channel: int, queue: str, exchange: str, binding_key: str) -> bytes:
    """Return queue.unbind."""
    return method(channel, QUEUE_UNBIND, _binding(queue, exchange, binding_key) + long_string(b""))


def _binding(queue: str, exchange: str, binding_key: str) -> bytes:
    return b"\x00\x00" + short_string(queue) + short_string(exchange) + short_string(binding_key)


def queue_delete(channel: int, name: str) -> bytes:
    """Return queue.delete, regardless of the queue's contents."""
    return method(channel, QUEUE_DELETE, b"\x00\x00" + short_string(name) + b"\x00")


def exchange_delete(channel: int, name: str) -> bytes:
    """Return exchange.delete."""
    return method(channel, EXCHANGE_DELETE, b"\x00\x00" + short_string(name) + b"\x00")


def basic_qos(channel: int, prefetch: int) -> bytes:
    """Return basic.qos with a prefetch count per consumer."""
    return method(channel, BASIC_QOS, b"\x00\x00\x00\x00" + prefetch.to_bytes(2, "big") + b"\x00")


def basic_consume(channel: int, queue: str, tag: str, *, auto_ack: bool) -> bytes:
    """Return basic.consume."""
    flags = bytes((0b0010 if auto_ack else 0,))
    names = short_string(queue) + short_string(tag)
    return method(channel, BASIC_CONSUME, b"\x00\x00" + names + flags + long_string(b""))


def basic_ack(channel: int, delivery_tag: int, *, multiple: bool) -> bytes:
    """Return basic.ack: an ack from a consumer, or a confirm from a broker."""
    return _ACK_FRAME.pack(METHOD, channel, 13, *BASIC_ACK, delivery_tag, multiple, 0xCE)


def close(channel: int, name: tuple[int, int]) -> bytes:
    """Return channel.close or connection.close with code 200."""
    return method(channel, name, b"\x00\xc8" + short_string("done") + b"\x00\x00\x00\x00")


def publish(
    channel: int, exchange: str, routing_key: str, body: bytes, *, persistent: bool, mandatory: bool = False
) -> bytes:
    """Return the frames of one published message: method, content header and body."""
    arguments = b"\x00\x00" + short_string(exchange) + short_string(routing_key) + bytes((mandatory,))
    return method(channel, BASIC_PUBLISH, arguments) + content(channel, body, persistent=persistent)


def deliver(channel: int, tag: str, exchange: str, routing_key: str, body: bytes, *, persistent: bool) -> bytes:
    """Return the frames of one delivered message with delivery tag 0, for a relay that forwards them unchanged."""
    arguments = short_string(tag) + bytes(9) + short_string(exchange) + short_string(routing_key)
    return method(channel, BASIC_DELIVER, arguments) + content(channel, body, persistent=persistent)


def content(channel: int, body: bytes, *, persistent: bool) -> bytes:
    """Return the content header and as few body frames as FRAME_MAX_BYTES allows."""
    mode = b"\x02" if persistent else b"\x01"
    head = CONTENT_HEAD.pack(60, 0, len(body), _DELIVERY_MODE_FLAG) + mode
    step = FRAME_MAX_BYTES - FRAME_OVERHEAD_BYTES
    pieces = [frame(BODY, channel, body[at : at + step]) for at in range(0, len(body), step)]
    return frame(HEADER, channel, head) + b"".join(pieces)
