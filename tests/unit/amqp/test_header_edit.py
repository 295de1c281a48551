"""Editing content headers: named entries change, all others keep their octets."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from pamqp import commands, header

from broker.amqp.content_header import decode_properties, measure_header
from broker.amqp.header_edit import edit_header, read_headers, read_text

ALL: dict[str, Any] = {
    "content_type": "text/plain",
    "headers": {"n": 1},
    "delivery_mode": 2,
    "priority": 9,
    "reply_to": "r",
    "expiration": "60000",
    "message_id": "m",
    "user_id": "u",
    "app_id": "a",
}
# Types and widths that a codec would change: short, unsigned, float, decimal, a time beyond the calendar, a boolean of
# 2, a key and a text that are not UTF-8, a duplicate key.
STRANGE = [
    b"\x01as\x00\x05",
    b"\x01bi\xff\xff\xff\xff",
    b"\x01cf\x3f\x80\x00\x00",
    b"\x01dD\xff\xff\xff\xff\xff",
    b"\x01eT" + b"\xff" * 8,
    b"\x01ft\x02",
    b"\x02\xff\xfeV",
    b"\x01gS\x00\x00\x00\x01\xff",
    b"\x01ax\x00\x00\x00\x01\x00",
    b"\x01hA\x00\x00\x00\x02b\x05",
    b"\x01iF\x00\x00\x00\x04\x01aB\x05",
]


def header_of(size: int = 5, **properties: Any) -> bytes:
    """Return a content header payload as pamqp writes it."""
    return header.ContentHeader(body_size=size, properties=commands.Basic.Properties(**properties)).marshal()


def with_table(*entries: bytes, flags: int = 0, behind: bytes = b"") -> bytes:
    """Return a content header payload with a headers table, further flags and the octets of their properties."""
    table = b"".join(entries)
    return struct.pack(">HHQHI", 60, 0, 5, 1 << 13 | flags, len(table)) + table + behind


def test_nothing_to_change() -> None:
    """A header without changes keeps its octets, also when a missing entry is dropped."""
    for octets in (header_of(), header_of(**ALL), with_table(), with_table(*STRANGE)):
        measure_header(octets)
        assert edit_header(octets) == octets
        assert edit_header(octets, drop_headers=["CC"], drop_properties=["content_encoding"]) == octets


def test_untouched_entries_keep_their_octets() -> None:
    """Entries of any type keep their octets and order, and new entries follow them."""
    edited = edit_header(with_table(*STRANGE), set_headers={"k": True}, drop_headers=["nothing"])
    assert edited == with_table(*STRANGE, b"\x01kt\x01")
    measure_header(edited)


def test_set_replaces_every_entry_of_the_name() -> None:
    """A set header occurs once, and a dropped header is removed with all its duplicates."""
    assert edit_header(with_table(*STRANGE), set_headers={"a": None}) == with_table(
        *STRANGE[1:8], *STRANGE[9:], b"\x01aV"
    )
    assert edit_header(with_table(*STRANGE), drop_headers={"a"}) == with_table(*STRANGE[1:8], *STRANGE[9:])


def test_table_is_made_and_kept() -> None:
    """The first header creates the table at its place in the properties; an empty table is kept."""
    octets = header_of(content_type="t", delivery_mode=2)
    assert edit_header(octets, drop_headers=["a"]) == octets
    edited = edit_header(octets, set_headers={"a": 1})
    assert decode_properties(edited) == commands.Basic.Properties(content_type="t", headers={"a": 1}, delivery_mode=2)
    assert edit_header(with_table(b"\x01aV"), drop_headers=["a"]) == with_table()


def test_properties() -> None:
    """Properties are dropped and set; the other properties and the body size stay."""
    edited = edit_header(
        header_of(7, **ALL),
        drop_properties=["expiration", "user_id"],
        set_properties={"reply_to": "amq.rabbitmq.reply-to.x", "message_type": "ñ"},
    )
    changes = {"expiration": None, "user_id": None, "reply_to": "amq.rabbitmq.reply-to.x", "message_type": "ñ"}
    assert decode_properties(edited) == commands.Basic.Properties(**{**ALL, **changes})
    assert edited[:12] == header_of(7)[:12]


@pytest.mark.parametrize(
    "change",
    [{"set_properties": {"reply_to": "x" * 256}}, {"set_headers": {"x" * 256: 1}}, {"set_headers": {"a": object()}}],
)
def test_what_cannot_be_written(change: dict[str, Any]) -> None:
    """A text or value that does not fit is refused, never cut."""
    with pytest.raises(ValueError, match="cannot hold"):
        edit_header(header_of(), **change)


def test_headers_that_are_read_to_be_written_back() -> None:
    """A value that is read and set again keeps everything but its width, also with keys that are not UTF-8."""
    inner = b"\x02\xff\xfeS\x00\x00\x00\x01\xff" + b"\x00V"
    octets = with_table(b"\x01tF" + struct.pack(">I", len(inner)) + inner, flags=1 << 11, behind=b"\x07")
    headers = read_headers(octets, "t", "u")
    assert headers == {"t": {"\udcff\udcfe": b"\xff", "": None}}
    assert edit_header(octets, set_headers=headers) == octets


def test_named_headers() -> None:
    """Only named headers are read; the first of a name counts, and text that resembles a name is ignored."""
    assert read_headers(with_table(*STRANGE), "a", "h", "z") == {"a": 5, "h": [5]}
    assert read_headers(with_table(b"\x01kS\x00\x00\x00\x01a"), "a") == {}
    assert read_headers(header_of(app_id="a"), "a") == {}
    assert read_headers(with_table(b"\x01kV")) == {}


def test_text_of_a_property() -> None:
    """A property is read alone, as text that encodes to the same octets."""
    octets = with_table(flags=1 << 8, behind=b"\x02\xff5")
    assert read_text(octets, "expiration") == "\udcff5"
    assert edit_header(octets, set_properties={"expiration": "\udcff5"}) == octets
    assert read_text(octets, "reply_to") is None
