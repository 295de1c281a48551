"""Encode and decode methods, and encode contents.

The method classes and their encoding are pamqp's (`pamqp.commands`). Decoding is done here, by offset and strictly:
pamqp accepts truncated long strings and trailing octets, and takes quadratic time to decode a table.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Final

from pamqp import base, commands

from broker.amqp.errors import ConnectionFault
from broker.amqp.framing import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, Octets
from broker.amqp.lenient_methods import ACCESS_METHODS
from broker.amqp.tables import TABLE_DEPTH_MAX, TABLE_ENTRIES_MAX, TableReader, read_text, syntax_error
from broker.amqp.wire import FRAME_END_OCTET, FRAME_HEAD, encode_frame

Method = base.Frame

LONG: Final = struct.Struct(">I")

SETTLEMENT_BYTES: Final = 13  # class and method, a delivery tag, and one octet of bits
TAG_AND_BITS: Final = struct.Struct(">QB")
NO_ARGUMENTS: Final = bytes(4)  # an empty table of arguments

METHODS: Final[dict[bytes, type[Method]]] = {
    LONG.pack(index): kind for index, kind in (commands.INDEX_MAPPING | ACCESS_METHODS).items()
}
# Types of fields as numbers, which compiled code compares fast. The number of an integer type is its size in octets.
BIT: Final = 0
SHORT_STRING: Final = -1
LONG_STRING: Final = -2
TABLE: Final = -3
FIELD_TYPES: Final = {
    "bit": BIT,
    "octet": 1,
    "short": 2,
    "long": 4,
    "longlong": 8,
    "shortstr": SHORT_STRING,
    "longstr": LONG_STRING,
    "table": TABLE,
}
# Method class -> its fields in order, as (name, number of the type).
FIELDS: Final[dict[type[Method], tuple[tuple[str, int], ...]]] = {
    kind: tuple((name, FIELD_TYPES[kind.amqp_type(name)]) for name in kind.__slots__) for kind in METHODS.values()
}
# Methods whose octets never vary, because they have no arguments or only a reserved text. That text is empty, as in
# RabbitMQ; pamqp would send "0" in channel.open-ok, which breaks some clients.
RESERVED_ALONE: Final = (commands.Connection.OpenOk, commands.Channel.OpenOk, commands.Basic.GetEmpty)
EMPTY_TEXTS: Final = {SHORT_STRING: bytes(1), LONG_STRING: bytes(4)}
PREPARED: Final[dict[type[Method], bytes]] = {
    kind: LONG.pack(kind.index) + b"".join([EMPTY_TEXTS[field_type] for _, field_type in fields])
    for kind, fields in FIELDS.items()
    if not fields or kind in RESERVED_ALONE
}
CLIENTS_MAX: Final = 64  # distinct decoded client properties in the cache


def read_short_string(payload: bytes, at: int) -> tuple[str, int]:
    """Return the short string at an offset, and its end.

    Raises: 501 for malformed UTF-8 (RabbitMQ's code and text), 502 when it is cut short.
    """
    if at >= len(payload):
        raise syntax_error("short string is cut short")
    start = at + 1
    end = start + payload[at]
    if end > len(payload):
        raise syntax_error("short string is cut short")
    try:
        return payload[start:end].decode("utf-8"), end
    except UnicodeDecodeError:
        raise ConnectionFault(501, "Malformed UTF-8 in shortstr") from None


def read_integer(payload: bytes, at: int, size: int) -> tuple[int, int]:
    """Return the unsigned integer of `size` octets at an offset, and its end. Raises: 502."""
    end = at + size
    if end > len(payload):
        raise syntax_error("integer is cut short")
    number = 0
    for place in range(at, end):
        number = number << 8 | payload[place]
    return number, end


def read_long_string(payload: bytes, at: int) -> tuple[str | bytes, int]:
    """Return the long string at an offset, as text if it is UTF-8, and its end. Raises: 502."""
    size, start = read_integer(payload, at, 4)
    end = start + size
    if end > len(payload):
        raise syntax_error("long string is cut short")
    return read_text(payload[start:end]), end


def decode_method(payload: bytes, depth_max: int = TABLE_DEPTH_MAX, entries_max: int = TABLE_ENTRIES_MAX) -> Method:
    """Return the method in the payload of a method frame.

    Raises: 540 for an unknown method, 502 for malformed arguments, 501 for a short string that is not UTF-8.
    Cost: linear in the payload.
    """
    kind = METHODS.get(payload[:4])
    if kind is None:
        raise unknown_method(payload)
    if kind is commands.Connection.StartOk:
        return decode_start_ok(payload, depth_max, entries_max)
    if kind is commands.Queue.Bind and payload.endswith(NO_ARGUMENTS):
        bind = decode_plain_bind(payload)
        if bind is not None:
            return bind
    # Without __init__, which would check names and warn of deprecated methods.
    method = kind.__new__(kind)
    at = 4
    bits = 8
    for name, field_type in FIELDS[kind]:
        value: Any
        if field_type == BIT:
            # Consecutive bits share an octet, lowest bit first (section 4.2.5.2).
            if bits == 8:
                if at >= len(payload):
                    raise syntax_error("bits are cut short")
                bits, at = 0, at + 1
            value = payload[at - 1] >> bits & 1 == 1
            bits += 1
        else:
            bits = 8
            if field_type > 0:
                value, at = read_integer(payload, at, field_type)
            elif field_type == SHORT_STRING:
                value, at = read_short_string(payload, at)
            elif field_type == LONG_STRING:
                value, at = read_long_string(payload, at)
            else:  # a table
                value, at = TableReader(payload, depth_max, entries_max).table(at, len(payload))
        setattr(method, name, value)
    check_filled(kind, payload, at)
    return method


def check_filled(kind: type[Method], payload: bytes, at: int) -> None:
    """Check that the payload ends after the arguments. Raises: 502."""
    if at != len(payload):
        raise syntax_error(f"{len(payload) - at} octets after the arguments of {kind.name}")


def decode_start_ok(payload: bytes, depth_max: int, entries_max: int) -> Method:
    """Return a connection.start-ok; clients with equal properties share the decoded `client_properties`.

    Raises: as decode_method().
    """
    table_bytes = 4 + int.from_bytes(payload[4:8], "big")
    start_ok = commands.Connection.StartOk.__new__(commands.Connection.StartOk)
    start_ok.client_properties = read_client_properties(payload[4 : 4 + table_bytes], depth_max, entries_max)
    start_ok.mechanism, at = read_short_string(payload, 4 + table_bytes)
    response, at = read_long_string(payload, at)
    start_ok.response = response  # type: ignore[assignment]  # octets if it is not UTF-8
    start_ok.locale, at = read_short_string(payload, at)
    check_filled(commands.Connection.StartOk, payload, at)
    return start_ok


@lru_cache(CLIENTS_MAX)
def read_client_properties(table: bytes, depth_max: int, entries_max: int) -> dict[str, Any]:
    """Return the decoded client properties, which must not be changed.

    They are cached because all connections of a program send equal octets, and each decoded table takes a kilobyte.
    """
    return TableReader(table, depth_max, entries_max).table(0, len(table))[0]


def decode_settlement(payload: bytes) -> Method | None:
    """Return a basic.ack, nack or reject, or None for another method. HOT, because consumers send one per message.

    Shapes: the payload has SETTLEMENT_BYTES octets.
    """
    kind = METHODS.get(payload[:4])
    delivery_tag, bits = TAG_AND_BITS.unpack_from(payload, 4)
    if kind is commands.Basic.Ack:
        ack = commands.Basic.Ack.__new__(commands.Basic.Ack)
        ack.delivery_tag = delivery_tag
        ack.multiple = bits & 1 == 1
        return ack
    if kind is commands.Basic.Nack:
        nack = commands.Basic.Nack.__new__(commands.Basic.Nack)
        nack.delivery_tag = delivery_tag
        nack.multiple = bits & 1 == 1
        nack.requeue = bits & 2 == 2
        return nack
    if kind is commands.Basic.Reject:
        reject = commands.Basic.Reject.__new__(commands.Basic.Reject)
        reject.delivery_tag = delivery_tag
        reject.requeue = bits & 1 == 1
        return reject
    return None


def decode_plain_bind(payload: bytes) -> Method | None:
    """Return a queue.bind without arguments, or None if the payload needs the general decoder.

    It exists for its speed: clients may send a hundred thousand of these. The payload ends with NO_ARGUMENTS.
    """
    try:
        queue_end = 7 + payload[6]  # after class, method and ticket
        exchange_end = queue_end + 1 + payload[queue_end]
        key_end = exchange_end + 1 + payload[exchange_end]
        if key_end + 1 + len(NO_ARGUMENTS) != len(payload):
            return None
        bind = commands.Queue.Bind.__new__(commands.Queue.Bind)
        bind.ticket = payload[4] << 8 | payload[5]
        bind.queue = payload[7:queue_end].decode()
        bind.exchange = payload[queue_end + 1 : exchange_end].decode()
        bind.routing_key = payload[exchange_end + 1 : key_end].decode()
    except (IndexError, UnicodeDecodeError):
        return None
    bind.nowait = payload[key_end] & 1 == 1
    bind.arguments = {}
    return bind


def unknown_method(payload: bytes) -> ConnectionFault:
    """Return the 540 for an unknown method, or the 502 for a payload without class and method."""
    if len(payload) < 4:
        return syntax_error("method frame without class and method")
    class_id, method_id = struct.unpack_from(">HH", payload)
    return ConnectionFault(540, f"unknown method {method_id} of class {class_id}", class_id, method_id)


def encode_method(channel: int, method: Method) -> bytes:
    """Return the frame of a method."""
    payload = PREPARED.get(type(method)) or LONG.pack(method.index) + method.marshal()
    return FRAME_HEAD.pack(FRAME_METHOD, channel, len(payload)) + payload + FRAME_END_OCTET


def publish_fields(payload: bytes) -> tuple[str, str, bool, bool]:
    """Return the exchange, routing key, mandatory and immediate of a basic.publish payload.

    Raises: 502 when the fields do not fill the payload, 501 for malformed UTF-8.
    """
    exchange, at = read_short_string(payload, 6)
    routing_key, at = read_short_string(payload, at)
    if at + 1 != len(payload):
        raise syntax_error("arguments of Basic.Publish do not fill the frame")
    bits = payload[at]
    return exchange, routing_key, bits & 1 == 1, bits & 2 == 2


def content_frames(channel: int, header: bytes, body: bytes, frame_max_bytes: int) -> list[Octets]:
    """Return the frames of a content: the header, and the body split for the peer's frame size (0: no limit).

    Shapes: pieces of frames, to be joined or written one after another. The body is not copied.
    """
    front = encode_frame(FRAME_HEADER, channel, header)
    if not body:
        return [front]
    part_bytes = frame_max_bytes - 8 if frame_max_bytes else len(body)
    if len(body) <= part_bytes:
        return [front + FRAME_HEAD.pack(FRAME_BODY, channel, len(body)), body, FRAME_END_OCTET]
    pieces: list[Octets] = []
    view = memoryview(body)
    for at in range(0, len(body), part_bytes):
        part = view[at : at + part_bytes]
        pieces += (front + FRAME_HEAD.pack(FRAME_BODY, channel, len(part)), part)
        front = FRAME_END_OCTET
    pieces.append(front)
    return pieces
