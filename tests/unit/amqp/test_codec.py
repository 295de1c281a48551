"""Encoding and decoding of methods and contents; pamqp is the other side of each test."""

from __future__ import annotations

import struct
import warnings
from typing import Any

import pytest
from pamqp import base, body, commands, frame, header

from broker.amqp.codec import (
    METHODS,
    content_frames,
    decode_method,
    encode_method,
    publish_fields,
)
from broker.amqp.errors import ConnectionFault
from broker.amqp.lenient_methods import BasicDeliver, BasicGetOk, BasicReturn, QueueDeclareOk

FILLED: dict[str, Any] = {
    "octet": 7,
    "short": 0x1234,
    "long": 0x12345678,
    "longlong": 0x1234567812345678,
    "shortstr": "short",
    "longstr": "long",
    "table": {"a": 1, "b": [True, None]},
    "bit": True,
}


def filled(kind: type[base.Frame]) -> base.Frame:
    """Return a method with no empty or zero field."""
    method = kind.__new__(kind)
    for name in kind.__slots__:
        setattr(method, name, FILLED[kind.amqp_type(name)])
    return method


def octets_of(method: base.Frame) -> bytes:
    """Return the payload that pamqp makes of a method, without pamqp's validation."""
    method.__class__ = type(method.name, (type(method),), {"validate": lambda _: None})
    return struct.pack(">I", method.index) + method.marshal()


@pytest.mark.parametrize("kind", METHODS.values(), ids=lambda kind: kind.name)
def test_every_method_is_read(kind: type[base.Frame]) -> None:
    """Every field of every method is read as pamqp wrote it, and a shorter or longer payload is refused."""
    payload = octets_of(filled(kind))
    method = decode_method(payload)
    assert type(method) is kind
    assert dict(method) == {name: FILLED[kind.amqp_type(name)] for name in kind.__slots__}
    for wrong in [payload[:size] for size in range(4, len(payload))] + [payload + b"\x00"]:
        with pytest.raises(ConnectionFault) as caught:
            decode_method(wrong)
        assert caught.value.reply_code == 502


@pytest.mark.parametrize("bits", range(32))
def test_bits_share_an_octet(bits: int) -> None:
    """Adjacent bits are packed lowest first (section 4.2.5.2)."""
    payload = b"\x00\x32\x00\x0a\x00\x00\x01q" + bytes([bits]) + b"\x00\x00\x00\x00"
    method = decode_method(payload)
    assert isinstance(method, commands.Queue.Declare)
    flags = [method.passive, method.durable, method.exclusive, method.auto_delete, method.nowait]
    assert flags == [bits >> place & 1 == 1 for place in range(5)]


def test_delivery_tags_are_unsigned() -> None:
    """A delivery tag has 64 bits and is unsigned."""
    method = decode_method(b"\x00\x3c\x00\x50" + b"\xff" * 8 + b"\x00")
    assert isinstance(method, commands.Basic.Ack)
    assert method.delivery_tag == (1 << 64) - 1


@pytest.mark.parametrize("payload", [b"\x00\x1e\x00\x63\x00", b"\x00\x3c\x00\x63", b"\x00\x00\x00\x00", b"\xff" * 50])
def test_unknown_method(payload: bytes) -> None:
    """An unknown class or method is 540, and the error names it."""
    with pytest.raises(ConnectionFault) as caught:
        decode_method(payload)
    error = caught.value
    assert (error.reply_code, error.class_id, error.method_id) == (540, *struct.unpack_from(">HH", payload))


def test_limits_of_tables() -> None:
    """The caller sets the limits of tables."""
    deep = octets_of(commands.Queue.Declare(queue="q", arguments={"a": [[[1]]]}))
    decode_method(deep, depth_max=4)
    with pytest.raises(ConnectionFault, match="nested more than 3"):
        decode_method(deep, depth_max=3)
    with pytest.raises(ConnectionFault, match="more than 3 entries"):
        decode_method(deep, entries_max=3)


def test_deprecated_methods_do_not_warn() -> None:
    """Reading a deprecated method emits no warning, which the tests would turn into an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dict(decode_method(b"\x00\x3c\x00\x64\x01")) == {"requeue": True}


@pytest.mark.parametrize("name", ["plain", "päivä", "a$b", "x" * 255, "队" * 85, ""])
def test_names_of_any_kind_are_written(name: str) -> None:
    """The methods that return names to a client accept every short string, not only the names that pamqp accepts."""
    methods = [
        (QueueDeclareOk(name, 3, 4), "queue"),
        (BasicReturn(312, "NO_ROUTE", name, "key"), "exchange"),
        (BasicDeliver("tag", 1, False, name, "key"), "exchange"),
        (BasicGetOk(1, False, name, "key", 0), "exchange"),
    ]
    for method, field in methods:
        octets = encode_method(5, method)
        assert struct.unpack_from(">BHI", octets) == (1, 5, len(octets) - 8)
        assert getattr(decode_method(octets[7:-1]), field) == name


@pytest.mark.parametrize("mandatory", [False, True])
@pytest.mark.parametrize("immediate", [False, True])
@pytest.mark.parametrize("names", [("", ""), ("x", "k"), ("x" * 127, "é" * 127)])
def test_publish_fields(names: tuple[str, str], mandatory: bool, immediate: bool) -> None:
    """The fields of a publish are read by offset as pamqp wrote them, whatever the ticket."""
    payload = octets_of(commands.Basic.Publish(0, *names, mandatory, immediate))
    assert publish_fields(payload) == (*names, mandatory, immediate)
    assert publish_fields(payload[:4] + b"\x00\x65" + payload[6:]) == (*names, mandatory, immediate)
    for wrong in [payload[:size] for size in range(4, len(payload))] + [payload + b"\x00"]:
        with pytest.raises(ConnectionFault) as caught:
            publish_fields(wrong)
        assert caught.value.reply_code == 502


def test_publish_to_a_name_that_is_not_utf_8() -> None:
    """A name in a publish must be UTF-8, like every other name."""
    with pytest.raises(ConnectionFault, match="Malformed UTF-8 in shortstr"):
        publish_fields(b"\x00\x3c\x00\x28\x00\x00\x01\xff\x00\x00")


@pytest.mark.parametrize("size", [0, 1, 91, 92, 93, 184, 185, 1000])
@pytest.mark.parametrize("frame_max", [0, 100])
def test_content_is_cut_for_the_frame_size(size: int, frame_max: int) -> None:
    """A body is sent in as few frames as the frame size allows, and an empty body in none."""
    payload = header.ContentHeader(body_size=size).marshal()
    text = bytes(place % 251 for place in range(size))
    octets = b"".join(content_frames(9, payload, text, frame_max))
    found: list[bytes] = []
    while octets:
        used, channel, value = frame.unmarshal(octets)
        assert channel == 9
        if isinstance(value, body.ContentBody):
            assert not frame_max or used <= frame_max
            found.append(value.value)
        else:
            assert octets[7 : used - 1] == payload
        octets = octets[used:]
    assert b"".join(found) == text
    assert len(found) == (-(-size // 92) if frame_max else min(size, 1))


@pytest.mark.parametrize("frame_max", [0, 4096])
def test_a_body_is_not_copied_into_its_frames(frame_max: int) -> None:
    """One frame holds the body object itself; several frames hold views of it."""
    text = bytes(10_000)
    parts = content_frames(9, header.ContentHeader(body_size=len(text)).marshal(), text, frame_max)[1::2]
    assert all((part.obj if isinstance(part, memoryview) else part) is text for part in parts)
    assert sum(map(len, parts)) == len(text)


@pytest.mark.parametrize("nowait", [False, True])
@pytest.mark.parametrize("arguments", [{}, {"x": 1}, {"": 0}])
def test_a_bind_is_read_the_same_with_and_without_arguments(nowait: bool, arguments: dict[str, Any]) -> None:
    """A bind without arguments, the usual case, is read in one step with the same result."""
    bind = commands.Queue.Bind(queue="q" * 99, exchange="x", routing_key="", nowait=nowait, arguments=arguments)
    payload = struct.pack(">I", bind.index) + bind.marshal()
    read = decode_method(payload)
    assert isinstance(read, commands.Queue.Bind)
    assert {name: getattr(read, name) for name in read.__slots__} == {
        name: getattr(bind, name) for name in bind.__slots__
    }


def test_a_bind_without_arguments_is_refused_as_any_other_method() -> None:
    """A bind that is cut short, has trailing octets or is not UTF-8 is refused like any other method."""
    payload = bytes.fromhex("00320014 0000 0171 0178 026b2e 00 00000000")
    assert decode_method(payload)
    for end in range(4, len(payload)):
        with pytest.raises(ConnectionFault, match="cut short"):
            decode_method(payload[:end])
    for octets in (b"\x00", bytes(4)):
        with pytest.raises(ConnectionFault):
            decode_method(payload + octets)
    with pytest.raises(ConnectionFault, match="Malformed UTF-8"):
        decode_method(payload.replace(b"\x02k.", b"\x02\xffk"))
