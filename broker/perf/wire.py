"""Encodes the few AMQP 0-9-1 frames that a load generator sends; it shares no code with the broker.

A second, independent encoder prevents a mistake in the broker's own codec from cancelling itself out in its benchmark.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from types import MappingProxyType

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = b"\xce"
FRAME_OVERHEAD_BYTES = 8  # type, channel, size, end octet (section 4.2.3)

CONNECTION_START = (10, 10)
CONNECTION_START_OK = (10, 11)
CONNECTION_TUNE = (10, 30)
CONNECTION_TUNE_OK = (10, 31)
CONNECTION_OPEN = (10, 40)
CONNECTION_OPEN_OK = (10, 41)
CONNECTION_CLOSE = (10, 50)
CONNECTION_CLOSE_OK = (10, 51)
CONNECTION_BLOCKED = (10, 60)
CONNECTION_UNBLOCKED = (10, 61)
CHANNEL_OPEN = (20, 10)
CHANNEL_OPEN_OK = (20, 11)
CHANNEL_CLOSE = (20, 40)
CHANNEL_CLOSE_OK = (20, 41)
EXCHANGE_DECLARE = (40, 10)
EXCHANGE_DECLARE_OK = (40, 11)
EXCHANGE_DELETE = (40, 20)
EXCHANGE_DELETE_OK = (40, 21)
QUEUE_DECLARE = (50, 10)
QUEUE_DECLARE_OK = (50, 11)
QUEUE_BIND = (50, 20)
QUEUE_BIND_OK = (50, 21)
QUEUE_UNBIND = (50, 50)
QUEUE_UNBIND_OK = (50, 51)
QUEUE_DELETE = (50, 40)
QUEUE_DELETE_OK = (50, 41)
BASIC_QOS = (60, 10)
BASIC_QOS_OK = (60, 11)
BASIC_CONSUME = (60, 20)
BASIC_CONSUME_OK = (60, 21)
BASIC_CANCEL = (60, 30)
BASIC_PUBLISH = (60, 40)
BASIC_RETURN = (60, 50)
BASIC_DELIVER = (60, 60)
BASIC_ACK = (60, 80)
BASIC_NACK = (60, 120)
CONFIRM_SELECT = (85, 10)
CONFIRM_SELECT_OK = (85, 11)

CONSUMER_TAG = "bench"
PUBLISH_CHANNEL = 1
CONSUME_CHANNEL = 2  # differs from the publisher's, so that a broker has to write every frame header anew
FRAME_HEAD = Struct(">BHI")
METHOD_HEAD = Struct(">HH")
CONTENT_HEAD = Struct(">HHQH")
TUNE = Struct(">HIH")
FRAME_MAX_BYTES = 131_072  # what brokers offer, and the maximum that this client accepts

_ACK_FRAME = Struct(">BHIHHQBB")
_DELIVERY_MODE_FLAG = 1 << 12
_CAPABILITIES = (
    b"publisher_confirms",
    b"basic.nack",
    b"consumer_cancel_notify",
    b"connection.blocked",
    b"authentication_failure_close",
)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return one whole frame."""
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


def table(fields: Mapping[str, str | int | bool]) -> bytes:
    """Return a field table of strings, 64-bit integers and booleans."""
    return long_string(b"".join(short_string(name) + _field(value) for name, value in fields.items()))


def _field(value: str | int | bool) -> bytes:
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int):
        return b"l" + value.to_bytes(8, "big", signed=True)
    return b"S" + long_string(value.encode())


def client_properties() -> bytes:
    """Return the field table that connection.start-ok carries."""
    flags = b"".join(bytes((len(name),)) + name + b"t\x01" for name in _CAPABILITIES)
    return long_string(
        b"\x07productS" + long_string(b"slotmq-perf") + b"\x0ccapabilitiesF" + long_string(flags),
    )


def start_ok(user: str, password: str) -> bytes:
    """Return connection.start-ok with PLAIN credentials."""
    answer = b"\x00" + user.encode() + b"\x00" + password.encode()
    arguments = client_properties() + short_string("PLAIN") + long_string(answer) + short_string("en_US")
    return method(0, CONNECTION_START_OK, arguments)


def exchange_declare(channel: int, name: str, kind: str, *, durable: bool, passive: bool = False) -> bytes:
    """Return exchange.declare."""
    flags = bytes(((0b00010 if durable else 0) | passive,))
    arguments = b"\x00\x00" + short_string(name) + short_string(kind) + flags + long_string(b"")
    return method(channel, EXCHANGE_DECLARE, arguments)


def queue_declare(
    channel: int,
    name: str,
    *,
    durable: bool,
    passive: bool = False,
    arguments: Mapping[str, str | int | bool] = MappingProxyType({}),
) -> bytes:
    """Return queue.declare of a queue that outlives its connection."""
    flags = bytes(((0b00010 if durable else 0) | passive,))
    return method(channel, QUEUE_DECLARE, b"\x00\x00" + short_string(name) + flags + table(arguments))


def queue_bind(channel: int, queue: str, exchange: str, binding_key: str) -> bytes:
    """Return queue.bind."""
    names = short_string(queue) + short_string(exchange) + short_string(binding_key)
    return method(channel, QUEUE_BIND, b"\x00\x00" + names + b"\x00" + long_string(b""))


def queue_unbind(channel: int, queue: str, exchange: str, binding_key: str) -> bytes:
    """Return queue.unbind."""
    names = short_string(queue) + short_string(exchange) + short_string(binding_key)
    return method(channel, QUEUE_UNBIND, b"\x00\x00" + names + long_string(b""))


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
    """Return the frames of one published message: three, or more if the body exceeds one frame."""
    arguments = b"\x00\x00" + short_string(exchange) + short_string(routing_key) + bytes((mandatory,))
    return method(channel, BASIC_PUBLISH, arguments) + content(channel, body, persistent=persistent)


def deliver(channel: int, tag: str, exchange: str, routing_key: str, body: bytes, *, persistent: bool) -> bytes:
    """Return the three frames of one delivered message with delivery tag 0, which a relay forwards unchanged."""
    arguments = short_string(tag) + bytes(9) + short_string(exchange) + short_string(routing_key)
    return method(channel, BASIC_DELIVER, arguments) + content(channel, body, persistent=persistent)


def content(channel: int, body: bytes, *, persistent: bool) -> bytes:
    """Return content header and body, in as few body frames as FRAME_MAX_BYTES allows."""
    mode = b"\x02" if persistent else b"\x01"
    head = CONTENT_HEAD.pack(60, 0, len(body), _DELIVERY_MODE_FLAG) + mode
    step = FRAME_MAX_BYTES - FRAME_OVERHEAD_BYTES
    pieces = [frame(BODY, channel, body[at : at + step]) for at in range(0, len(body), step)]
    return frame(HEADER, channel, head) + b"".join(pieces)
