"""Properties are read and written by one table."""

from __future__ import annotations

from typing import Any

import pytest

from broker.mqtt.errors import PacketError
from broker.mqtt.properties import (
    BINARY,
    FLAG,
    FOUR,
    PAIR,
    PROPERTIES,
    TEXT,
    TWO,
    VARINT,
    encode_properties,
    read_properties,
)
from broker.mqtt.wire import Reader, varint

VALUES: dict[int, Any] = {
    FLAG: 1,
    TWO: 300,
    FOUR: 70_000,
    VARINT: 268_435_455,
    TEXT: "text",
    BINARY: b"\xff\0",
    PAIR: [("a", "b"), ("a", "")],
}


def read(octets: bytes, packet: int) -> dict[int, Any]:
    """Return the properties of a packet of that type."""
    whole = varint(len(octets)) + octets
    return read_properties(Reader(whole, 0, len(whole)), packet)


@pytest.mark.parametrize("identifier", PROPERTIES)
def test_each_property_in_each_packet(identifier: int) -> None:
    """A property is read where it may be, refused with 0x82 elsewhere, and with 0x81 when it is cut short."""
    known = PROPERTIES[identifier]
    values = {identifier: VALUES[known.kind]}
    octets = encode_properties(values)
    for packet in (0, 1, 3, 4, 8, 10, 14, 15):
        if packet in known.packets:
            assert read(octets, packet) == values
            with pytest.raises(PacketError) as caught:
                read(octets[:-1], packet)
            assert caught.value.reason_code == 0x81
            if known.kind != PAIR:
                with pytest.raises(PacketError, match="twice"):
                    read(octets * 2, packet)
        else:
            with pytest.raises(PacketError) as caught:
                read(octets, packet)
            assert caught.value.reason_code == 0x82
