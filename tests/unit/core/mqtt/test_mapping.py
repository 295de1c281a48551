"""Properties of MQTT and content headers of AMQP."""

from __future__ import annotations

from typing import Any

import pytest

from broker.amqp.content_header import decode_properties, facts_of, measure_header
from broker.core.mqtt.mapping import NO_ALIAS, MessageMapping, message_properties
from broker.core.mqtt.packet_ids import PacketIds
from broker.mqtt.errors import PacketError
from broker.mqtt.properties import encode_properties

SETS: list[dict[int, Any]] = [
    {},
    {0x01: 1},
    {0x03: "text/plain", 0x09: b"id", 0x08: "a/b.c"},
    {0x09: b"\xff"},
    {0x09: bytes(300)},
    {0x26: [("z", "1"), ("a", "2"), ("z", "3"), ("", "")]},
    {0x03: "c", 0x08: "r", 0x09: b"\0", 0x01: 1, 0x26: [("k", "ü")]},
]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("properties", SETS)
def test_properties_come_back(properties: dict[int, Any], qos: int) -> None:
    """A content header holds every property of a publish, and is whole."""
    mapping = MessageMapping(64)
    content, alias = mapping.properties(encode_properties(properties), qos)
    header = mapping.header(content, 5)
    measure_header(header)
    assert alias == NO_ALIAS
    assert facts_of(header).persistent is (qos > 0)
    assert message_properties(header) == properties
    assert mapping.header(mapping.properties(encode_properties(properties), qos)[0], 5) is header


def test_an_expiry_is_an_expiration() -> None:
    """Seconds become milliseconds; the rest of them is told at the delivery."""
    mapping = MessageMapping(64)
    header = mapping.header(mapping.properties(b"\x02\0\0\0\x09", 1)[0], 0)
    assert decode_properties(header).expiration == "9000"
    longest, _ = mapping.properties(b"\x02\xff\xff\xff\xff", 1)
    assert facts_of(mapping.header(longest, 0)).expiration_ms == 315_360_000_000, "ten years: AMQP's longest"
    assert message_properties(header) == {}


@pytest.mark.parametrize(("properties", "code"), [({0x03: "x" * 256}, 0x83), ({0x26: [("x" * 256, "")]}, 0x83)])
def test_what_no_header_can_hold(properties: dict[int, Any], code: int) -> None:
    """It is refused with its reason code, and nothing is dropped in silence."""
    with pytest.raises(PacketError) as caught:
        MessageMapping(64).properties(encode_properties(properties), 1)
    assert caught.value.reason_code == code


def test_the_tables_are_bounded() -> None:
    """Any number of topics and properties leaves a bounded number of them in memory."""
    mapping = MessageMapping(64)
    for number in range(10_000):
        mapping.payload(b"t/%d" % number)
        mapping.topic(f"t.{number}")
        mapping.header(mapping.properties(encode_properties({0x03: str(number)}), 0)[0], number)
    kept = [getattr(mapping, name) for name in ("_payloads", "_topics", "_properties", "_headers")]
    assert max(map(len, kept)) <= 4096


def test_a_packet_id_follows_from_the_message_id() -> None:
    """The ids of the session's queue wrap before those of shared subscriptions; one in use holds the next message."""
    ids = PacketIds()
    assert [ids.assign(tag, message_id) for tag, message_id in ((1, 0), (2, 1), (3, 32_766))] == [1, 2, 32_767]
    assert [ids.assign_shared(tag) for tag in (4, 5)] == [32_768, 32_769]
    assert ids.assign(6, 32_767) == 0
    assert (ids.blocking, ids.take_held(), ids.take_held()) == (1, [6], [])
    assert (ids.free(2), ids.blocking) == (2, 1)
    assert (ids.free(1), ids.blocking) == (1, 0)
    assert ids.free(1) == 0
    assert ids.assign(6, 32_767) == 1


def test_a_released_packet_id_is_in_use_until_it_is_complete() -> None:
    """An acknowledgement does not free it."""
    ids = PacketIds()
    ids.release(7)
    assert (ids.released, ids.is_released(7), ids.free(7), ids.assign(1, 6)) == (1, True, 0, 0)
    assert (ids.complete(7), ids.complete(7), ids.released, ids.blocking) == (True, False, 0, 0)


def test_shared_packet_ids_wrap_around_those_in_use() -> None:
    """They stay above those of the session's queue."""
    ids = PacketIds()
    assert ids.assign_shared(1) == 32_768
    for tag in range(2, 32_769):
        assert ids.free(ids.assign_shared(tag)) == tag
    assert ids.assign_shared(9) == 32_769
