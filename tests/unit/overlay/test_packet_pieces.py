"""Packets that arrive in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.overlay.packets import Packet, Space, StreamName, StreamRun, UpdateAck
from broker.overlay.wire import OTHER_PACKETS_BYTES, DamagedPacket, PacketPieces, decode, encode
from tests.unit.overlay.test_sink import data

STREAM = StreamName("sb1", Space("/", "orders"))


@given(sizes=st.lists(st.integers(0, 40), max_size=6), cuts=st.lists(st.integers(1, 60), min_size=1, max_size=10))
def test_packets_are_whole_however_they_are_cut(sizes: list[int], cuts: list[int]) -> None:
    """Each piece gives the packets that end in it, in order."""
    packets: list[Packet] = [
        StreamRun(STREAM, 1, size, 0, tuple(data(number) for number in range(1, size + 1))) if size else UpdateAck(size)
        for size in sizes
    ]
    body, pieces, found = b"".join(map(encode, packets)), PacketPieces(1), []
    at = 0
    while at < len(body):
        cut = cuts[at % len(cuts)]
        found += decode(pieces.whole(body[at : at + cut]))
        at += cut
    assert found == packets


def test_a_packet_above_the_limit_is_refused_by_its_head() -> None:
    """Nothing of it is kept; the limit leaves room beside the largest message."""
    limit = 1_000 + OTHER_PACKETS_BYTES
    assert PacketPieces(1_000).whole((limit - 4).to_bytes(4, "big") + b"\x05") == b""
    with pytest.raises(DamagedPacket, match="a packet of"):
        PacketPieces(1_000).whole((limit - 3).to_bytes(4, "big") + b"\x05")
