"""Methods and contents, to and from octets.

The vocabulary is pamqp's (`pamqp.commands`), and so is the encoding. Decoding is done here, by offset and exactly:
pamqp accepts truncated long strings and trailing octets, and its tables cost the square of their size.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from pamqp import base, commands

from broker.amqp.access import ACCESS_METHODS
from broker.amqp.content_header import Properties, decode_properties
from broker.amqp.errors import ConnectionFault
from broker.amqp.framing import FRAME_BODY, FRAME_END_OCTET, FRAME_HEADER, FRAME_METHOD, HEAD, PUBLISH, encode_frame
from broker.amqp.tables import TABLE_DEPTH_MAX, TABLE_ENTRIES_MAX, TableReader, read_text, syntax_error

__all__ = [
    "DELIVER",
    "PUBLISH",
    "BasicDeliver",
    "BasicGetOk",
    "BasicReturn",
    "Method",
    "Properties",
    "QueueDeclareOk",
    "content_frames",
    "decode_method",
    "decode_properties",
    "encode_ack",
    "encode_method",
    "encode_nack",
    "publish_fields",
]

Method = base.Frame

SHORT: Final = struct.Struct(">H")
LONG: Final = struct.Struct(">I")
LONG_LONG: Final = struct.Struct(">Q")
ACK: Final = struct.Struct(">BHIIQBB")

# Class and method, a delivery tag, and one octet of bits.
SETTLEMENT_BYTES: Final = 13
TAG_AND_BITS: Final = struct.Struct(">QB")
NO_ARGUMENTS: Final = bytes(4)  # a table of no bytes, and what a method without arguments ends with
SETTLEMENTS: Final = frozenset({commands.Basic.Ack, commands.Basic.Nack, commands.Basic.Reject})

DELIVER: Final = b"\x00\x3c\x00\x3c"
ACK_INDEX: Final = 0x003C0050
NACK_INDEX: Final = 0x003C0078

METHODS: Final[dict[bytes, type[Method]]] = {
    LONG.pack(index): kind for index, kind in (commands.INDEX_MAPPING | ACCESS_METHODS).items()
}
# Class -> its fields in order, as (name, type).
FIELDS: Final[dict[type[Method], tuple[tuple[str, str], ...]]] = {
    kind: tuple((name, kind.amqp_type(name)) for name in kind.__slots__) for kind in METHODS.values()
}


# pamqp refuses names outside [a-zA-Z0-9-_.:@#,/+ ] and beyond 127 characters, as the specification would; RabbitMQ
# takes any short string. These four carry names back to clients, so they are the ones that must not judge them.
class QueueDeclareOk(commands.Queue.DeclareOk):
    """Is queue.declare-ok for any name."""

    def validate(self) -> None:
        """Accepts what the queue was declared with."""


class BasicReturn(commands.Basic.Return):
    """Is basic.return for any name."""

    def validate(self) -> None:
        """Accepts what the message was published with."""


class BasicDeliver(commands.Basic.Deliver):
    """Is basic.deliver for any name."""

    def validate(self) -> None:
        """Accepts what the message was published with."""


class BasicGetOk(commands.Basic.GetOk):
    """Is basic.get-ok for any name."""

    def validate(self) -> None:
        """Accepts what the message was published with."""


def read_short_string(payload: bytes, at: int) -> tuple[str, int]:
    """Returns the short string at an offset, and where it ends.

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


def read_integer(payload: bytes, at: int, layout: struct.Struct) -> tuple[int, int]:
    """Returns the unsigned integer at an offset, and where it ends."""
    end = at + layout.size
    if end > len(payload):
        raise syntax_error("integer is cut short")
    return int(layout.unpack_from(payload, at)[0]), end


INTEGERS: Final[dict[str, struct.Struct]] = {
    "octet": struct.Struct(">B"),
    "short": SHORT,
    "long": LONG,
    "longlong": LONG_LONG,
}


def decode_method(payload: bytes, depth_max: int = TABLE_DEPTH_MAX, entries_max: int = TABLE_ENTRIES_MAX) -> Method:
    """Returns the method that a method frame's payload holds.

    Raises: 540 for a class or method that AMQP 0-9-1 with RabbitMQ's extensions does not have; 502 when the arguments
    are not exactly as long as the payload; 501 for malformed UTF-8.
    Cost: linear in the payload.
    """
    kind = METHODS.get(payload[:4])
    if kind is None:
        raise unknown_method(payload)
    if len(payload) == SETTLEMENT_BYTES and kind in SETTLEMENTS:
        return decode_settlement(kind, payload)
    if kind is commands.Queue.Bind and payload.endswith(NO_ARGUMENTS):
        bind = decode_plain_bind(payload)
        if bind is not None:
            return bind
    # Without __init__, which would judge names, and warn of methods that the specification deprecates.
    method = kind.__new__(kind)
    tables = TableReader(payload, depth_max, entries_max)
    at = 4
    bits = 8
    for name, field_type in FIELDS[kind]:
        value: Any
        if field_type == "bit":
            # Neighbouring bits share octets, lowest first (section 4.2.5.2).
            if bits == 8:
                if at >= len(payload):
                    raise syntax_error("bits are cut short")
                bits, at = 0, at + 1
            value = payload[at - 1] >> bits & 1 == 1
            bits += 1
        else:
            bits = 8
            if field_type == "shortstr":
                value, at = read_short_string(payload, at)
            elif field_type == "table":
                value, at = tables.table(at, len(payload))
            elif field_type == "longstr":
                size, at = read_integer(payload, at, LONG)
                if at + size > len(payload):
                    raise syntax_error("long string is cut short")
                value, at = read_text(payload[at : at + size]), at + size
            else:
                value, at = read_integer(payload, at, INTEGERS[field_type])
        setattr(method, name, value)
    if at != len(payload):
        raise syntax_error(f"{len(payload) - at} octets behind the arguments of {kind.name}")
    return method


def decode_settlement(kind: type[Method], payload: bytes) -> Method:
    """Returns a basic.ack, nack or reject; consumers send one per message, so these do not go field by field. HOT."""
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
    reject = commands.Basic.Reject.__new__(commands.Basic.Reject)
    reject.delivery_tag = delivery_tag
    reject.requeue = bits & 1 == 1
    return reject


def decode_plain_bind(payload: bytes) -> Method | None:
    """Returns a queue.bind without arguments, of which clients send a hundred thousand; None if it is not well formed.

    That is for `decode_method` to say in words.
    """
    try:
        queue_end = 7 + payload[6]  # behind class, method and ticket
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
    """Returns the 540, or the 502 when there is not even a class and method."""
    if len(payload) < 4:
        return syntax_error("method frame without class and method")
    class_id, method_id = struct.unpack_from(">HH", payload)
    return ConnectionFault(540, f"unknown method {method_id} of class {class_id}", class_id, method_id)


def encode_method(channel: int, method: Method) -> bytes:
    """Returns the method's whole frame."""
    return encode_frame(FRAME_METHOD, channel, LONG.pack(method.index) + method.marshal())


def encode_ack(channel: int, delivery_tag: int, multiple: bool) -> bytes:
    """Returns the frame of the basic.ack that confirms a publish."""
    return ACK.pack(FRAME_METHOD, channel, 13, ACK_INDEX, delivery_tag, multiple, 0xCE)


def encode_nack(channel: int, delivery_tag: int, multiple: bool) -> bytes:
    """Returns the frame of the basic.nack that refuses a publish; `requeue` means nothing in this direction."""
    return ACK.pack(FRAME_METHOD, channel, 13, NACK_INDEX, delivery_tag, multiple, 0xCE)


def publish_fields(payload: bytes) -> tuple[str, str, bool, bool]:
    """Returns exchange, routing key, mandatory and immediate of a basic.publish payload.

    Raises: 502 when the lengths do not add up, 501 for malformed UTF-8.
    """
    exchange, at = read_short_string(payload, 6)
    routing_key, at = read_short_string(payload, at)
    if at + 1 != len(payload):
        raise syntax_error("arguments of Basic.Publish do not fill the frame")
    bits = payload[at]
    return exchange, routing_key, bits & 1 == 1, bits & 2 == 2


def content_frames(channel: int, header: bytes, body: bytes, frame_max_bytes: int) -> bytes:
    """Returns the frames of a content: its header, and its body cut for the peer's frame size (0: no limit)."""
    head = encode_frame(FRAME_HEADER, channel, header)
    if not body:
        return head
    piece_bytes = frame_max_bytes - 8 if frame_max_bytes else len(body)
    if len(body) <= piece_bytes:
        return b"".join((head, HEAD.pack(FRAME_BODY, channel, len(body)), body, FRAME_END_OCTET))
    pieces = [head]
    for at in range(0, len(body), piece_bytes):
        piece = body[at : at + piece_bytes]
        pieces += (HEAD.pack(FRAME_BODY, channel, len(piece)), piece, FRAME_END_OCTET)
    return b"".join(pieces)
