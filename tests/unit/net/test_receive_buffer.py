"""How much the kernel receives ahead from a near client, and when it may receive more."""

from __future__ import annotations

import socket
import struct
import sys

import pytest

from broker.net.receive_buffer import MOST_BYTES, NEAR_US, QUICK_TURNS, ReceiveBuffer, receive_buffer_of

FIRST_BYTES = 16 << 10

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the round trip of a connection is an option of Linux")


class End(socket.socket):
    """A socket whose handshake took a given time, and which notes what size it gets."""

    def __init__(self, round_trip_us: int, known_bytes: int = 72) -> None:
        """`known_bytes` is how much the kernel tells of a connection."""
        super().__init__()
        self.known_bytes = known_bytes
        self.round_trip_us = round_trip_us
        self.asked: list[int] = []

    def getsockopt(self, level: int, option: int, length: int = 0) -> bytes:  # type: ignore[override]
        """Return the kernel's answer, with the round trip instead of its own."""
        found = super().getsockopt(level, option, length)
        return (found[:68] + struct.pack("=I", self.round_trip_us) + found[72:])[: self.known_bytes]

    def setsockopt(self, level: int, option: int, value: int) -> None:  # type: ignore[override]
        """Note a size."""
        if option == socket.SO_RCVBUF:
            self.asked.append(value)
        else:
            assert (level, option, value) == (socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, 2 * self.asked[-1])


def sizes(reads: list[tuple[int, int]]) -> list[int]:
    """Return the sizes that a buffer gets when reads bring so many octets, each after so many turns in all."""
    with End(NEAR_US - 1) as end:
        buffer = receive_buffer_of(end, FIRST_BYTES)
        assert buffer is not None
        for read_bytes, turns in reads:
            buffer.after_read(read_bytes, turns)
        return end.asked


def test_a_buffer_grows_while_the_broker_handles_quickly_what_fills_it() -> None:
    """Full reads in successive turns double it up to a limit."""
    reads = [(MOST_BYTES, 100 + turns) for turns in range(20)]
    doubled = [FIRST_BYTES << power for power in range(20) if FIRST_BYTES << power <= MOST_BYTES]
    assert sizes(reads) == doubled


def test_a_buffer_stays_while_the_broker_needs_many_turns_for_what_fills_it() -> None:
    """Of a publisher to many queues, a turn takes little: what waits in a larger buffer would only wait longer."""
    assert sizes([(FIRST_BYTES, 100 + turns * (QUICK_TURNS + 1)) for turns in range(20)]) == [FIRST_BYTES]


def test_a_buffer_stays_while_it_is_not_full() -> None:
    """Small reads show that the client sends no more than the broker handles."""
    assert sizes([(FIRST_BYTES // 2 - 1, 100 + turns) for turns in range(20)]) == [FIRST_BYTES]


def test_only_near_clients_on_tcp_have_a_buffer_of_their_own() -> None:
    """Over a long link the octets in flight need room, so there the system decides, as it does when the size is 0."""
    with End(NEAR_US) as far, End(NEAR_US - 1) as near:
        assert receive_buffer_of(far, FIRST_BYTES) is None
        assert receive_buffer_of(near, 0) is None
        assert not far.asked
        assert not near.asked
        assert isinstance(receive_buffer_of(near, FIRST_BYTES), ReceiveBuffer)
    with End(NEAR_US - 1, known_bytes=68) as vague:
        assert receive_buffer_of(vague, FIRST_BYTES) is None
    one, other = socket.socketpair()
    with one, other:
        assert receive_buffer_of(one, FIRST_BYTES) is None
    assert receive_buffer_of(None, FIRST_BYTES) is None
