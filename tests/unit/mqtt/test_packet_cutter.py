"""Packets are cut from octets in any pieces, and publishes and their acknowledgements into runs."""

from __future__ import annotations

import pytest

from broker.mqtt.errors import PacketError
from broker.mqtt.packet_cutter import ACK_RUN, PUBLISH_RUN, PacketCutter
from tests.mqtt.raw_mqtt import packet, publish, text


def cut(cutter: PacketCutter) -> list[object]:
    """Return what can be cut: topics with packet ids, packet ids, and first octets."""
    found: list[object] = []
    while (kind := cutter.cut()) is not None:
        if kind == PUBLISH_RUN:
            assert cutter.publishes is not None
            found.append(list(zip(cutter.publishes.topics, cutter.publishes.packet_ids, strict=True)))
        else:
            found.append(cutter.acked if kind == ACK_RUN else kind)
    return found


def test_publishes_with_equal_qos_and_properties_are_one_run() -> None:
    """A run ends at another QoS, at other properties and at another packet; a repeated publish does not end it."""
    cutter = PacketCutter(1000)
    cutter.has_properties = True
    cutter.feed(publish("a", b"1") + publish("b", b"2") + publish("c", b"3", 7) + publish("d", b"4", 8, flags=8))
    cutter.feed(publish("e", b"5", 9, b"\x01\x01") + packet(0xC0) + publish("f", b"", 10) + b"\x40\x02\0\1\x40\x02\0\2")
    cutter.feed(b"\x62\x02\0\1\x62\x02\0\2\x50\x02\0\3")
    assert cut(cutter) == [
        [(b"a", 0), (b"b", 0)],
        [(b"c", 7), (b"d", 8)],
        [(b"e", 9)],
        0xC0,
        [(b"f", 10)],
        [1, 2],
        [1, 2],
        [3],
    ]
    assert cutter.buffered_bytes == 0


def test_a_run_ends_before_a_malformed_publish() -> None:
    """Publishes before the fault are cut first."""
    cutter = PacketCutter(1000)
    cutter.feed(publish("a", b"1", 1, None) + packet(0x32, text("b"), b"\0\0"))
    assert cutter.cut() == PUBLISH_RUN
    with pytest.raises(PacketError, match="packet id of 0") as caught:
        cutter.cut()
    assert caught.value.reason_code == 0x81


def test_a_packet_over_the_limit_is_refused_at_its_header() -> None:
    """Its body need not arrive; one of exactly the limit is cut."""
    cutter = PacketCutter(100)
    cutter.feed(publish("a", bytes(95), 0, None))
    assert cut(cutter) == [[(b"a", 0)]]
    cutter.feed(publish("a", bytes(96), 0, None)[:2])
    with pytest.raises(PacketError) as caught:
        cutter.cut()
    assert caught.value.reason_code == 0x95


def test_a_large_packet_in_small_pieces_is_joined_once() -> None:
    """Pieces are kept until the packet is whole: the cost is linear in its octets."""
    cutter = PacketCutter(1 << 20)
    octets = publish("a", bytes(200_000), 0, None)
    for at in range(0, len(octets) - 1, 100):
        cutter.feed(octets[at : at + 100] if at + 100 < len(octets) else octets[at:-1])
        assert cutter.cut() is None
        assert len(cutter.buffer) <= 200
    cutter.feed(octets[-1:])
    assert cut(cutter) == [[(b"a", 0)]]


@pytest.mark.parametrize(
    "octets",
    [
        b"\x30\xff\xff\xff\xff",
        b"\x30\x80\x00",
        packet(0x31 | 6, text("a"), b"\0\1"),
        packet(0x30, b"\0"),
        packet(0x30, b"\0\5a"),
        packet(0x32, text("a"), b"\0"),
        packet(0x41, b"\0\1"),
        b"\x40\x02\0\0",
    ],
)
def test_malformed_headers(octets: bytes) -> None:
    """Each is refused with 0x81."""
    cutter = PacketCutter(1000)
    cutter.feed(octets)
    with pytest.raises(PacketError) as caught:
        cutter.cut()
    assert caught.value.reason_code == 0x81
