"""Content headers: measured without decoding, cached, and decoded on demand."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any

import pytest
from pamqp import header as pamqp_header

from broker.amqp.content_header import (
    KNOWN_MAX,
    HeaderGauge,
    Properties,
    decode_properties,
    facts_of,
    gauge_of,
    measure_header,
)
from broker.amqp.errors import ConnectionFault

ALL: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "headers": {"a": 1, "b": ["x", None]},
    "delivery_mode": 2,
    "priority": 9,
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "60000",
    "message_id": "m",
    "timestamp": datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
    "message_type": "t",
    "user_id": "u",
    "app_id": "a",
}


def header_of(size: int = 5, **properties: Any) -> bytes:
    """Return a content header payload as pamqp writes it."""
    return pamqp_header.ContentHeader(body_size=size, properties=Properties(**properties)).marshal()


def with_flags(flags: int, octets: bytes) -> bytes:
    """Return a content header payload with these flags and property octets."""
    return struct.pack(">HHQH", 60, 0, 0, flags) + octets


@pytest.mark.parametrize("name", [*ALL, "none", "all"])
def test_properties(name: str) -> None:
    """Each property alone, none and all are measured and decoded as pamqp wrote them."""
    properties = ALL if name == "all" else {key: value for key, value in ALL.items() if key == name}
    octets = header_of(**properties)
    assert measure_header(octets).persistent is ("delivery_mode" in properties)
    assert decode_properties(octets) == Properties(**properties)


@pytest.mark.parametrize(("mode", "persistent"), [(None, False), (0, False), (1, False), (2, True), (3, False)])
def test_persistence(mode: int | None, persistent: bool) -> None:
    """A message is persistent with delivery mode 2 only, wherever the octet is in the properties."""
    octets = b"" if mode is None else bytes([mode])
    flags = 0 if mode is None else 1 << 12
    assert measure_header(with_flags(flags, octets)).persistent is persistent
    text = b"\x03a/b"
    assert measure_header(with_flags(flags | 1 << 15, text + octets)).persistent is persistent


def test_cut_or_long_at_every_octet() -> None:
    """Properties that end before or after the payload are 502."""
    octets = header_of(**ALL)
    for wrong in [octets[:size] for size in range(len(octets))] + [octets + b"\x00"]:
        for judge in (measure_header, decode_properties):
            with pytest.raises(ConnectionFault) as caught:
                judge(wrong)
            assert caught.value.reply_code == 502


@pytest.mark.parametrize("flags", [1, 2, 3, 0x8001])
def test_flags_that_class_basic_does_not_have(flags: int) -> None:
    """The two lowest flags are undefined for class basic."""
    with pytest.raises(ConnectionFault, match="properties that class basic does not have"):
        measure_header(with_flags(flags, b"\x00\x00\x00"))


def test_limits_of_the_headers_table() -> None:
    """The headers of a message have the same limits as every table."""
    octets = header_of(headers={"a": [[1]]})
    measure_header(octets, depth_max=3, entries_max=3)
    for limits in ({"depth_max": 2}, {"entries_max": 2}):
        with pytest.raises(ConnectionFault) as caught:
            measure_header(octets, **limits)
        assert caught.value.reply_code == 502


def test_what_passes_can_be_decoded() -> None:
    """Invalid UTF-8 and times beyond the calendar are relayed, so decoding them must not fail."""
    table = b"\x00\x00\x00\x04\x02\xff\xfeV"
    octets = with_flags(1 << 13 | 1 << 10 | 1 << 6, table + b"\x02\xff\xfe" + b"\xff" * 8)
    measure_header(octets)
    properties = decode_properties(octets)
    assert properties.headers == {"\ufffd\ufffd": None}
    assert properties.correlation_id == "\ufffd\ufffd"
    assert properties.timestamp == (1 << 64) - 1


def test_measured_once() -> None:
    """Valid properties are cached for every body size; refused properties are not cached."""
    gauge = HeaderGauge(16, 4096)
    seen = {id(gauge.facts(header_of(size, delivery_mode=2, user_id="u"))) for size in (1, 2, 3)}
    assert [id(facts) for facts in gauge.known.values()] == list(seen)
    for _ in range(2):
        with pytest.raises(ConnectionFault):
            gauge.facts(header_of(app_id="a") + b"?")
    assert len(gauge.known) == 1


def test_memory_is_bounded() -> None:
    """The cache has a limit in entries and in bytes."""
    gauge = HeaderGauge(16, 4096)
    for number in range(3 * KNOWN_MAX):
        gauge.facts(header_of(message_id=str(number)))
        assert len(gauge.known) <= KNOWN_MAX
    kept = len(gauge.known)
    gauge.facts(header_of(headers={"a": "x" * 600}))
    assert len(gauge.known) == kept


def test_limits_do_not_share_what_they_know() -> None:
    """Properties that one set of limits accepted are checked again under stricter limits."""
    octets = header_of(headers={"a": [[1]], "test": "limits do not share"})
    gauge_of(16, 4096).facts(octets)
    with pytest.raises(ConnectionFault):
        gauge_of(2, 4096).facts(octets)
    assert gauge_of(16, 4096) is gauge_of(16, 4096)


def test_headers_that_were_measured_before() -> None:
    """Stored properties are read whatever the present limits are, and cached."""
    nested: list[Any] = []
    for _ in range(40):
        nested = [nested]
    octets = header_of(headers={"a": nested}, priority=3, user_id="u")
    with pytest.raises(ConnectionFault):
        gauge_of().facts(octets)
    facts = facts_of(octets)
    assert (facts.priority, facts.user_id) == (3, "u")
    assert facts_of(octets) is facts
