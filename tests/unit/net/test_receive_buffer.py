"""The size of the kernel's receive buffer for a near client, and when it may grow."""

from __future__ import annotations

import socket
import struct
import sys
from contextlib import suppress

import pytest

from broker.net.receive_buffer import FIRST_BYTES, LAST_BYTES, NEAR_US, QUICK_FILLS, QUICK_MS, ReceiveBuffer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the round trip of a connection is an option of Linux")


class End(socket.socket):
    """A socket with a given shortest round trip, which notes what sizes it gets."""

    def __init__(self, round_trip_us: int, known_bytes: int = 152) -> None:
        """`known_bytes` is how much the kernel tells of a connection."""
        super().__init__()
        self.known_bytes = known_bytes
        self.round_trip_us = round_trip_us
        self.asked: list[int] = []

    def getsockopt(self, level: int, option: int, length: int = 0) -> bytes:  # type: ignore[override]
        """Return the kernel's answer, with the round trip instead of its own."""
        found = super().getsockopt(level, option, length)
        return (found[:148] + struct.pack("=I", self.round_trip_us) + found[152:])[: self.known_bytes]

    def setsockopt(self, level: int, option: int, value: int) -> None:  # type: ignore[override]
        """Record a size."""
        if option == socket.SO_RCVBUF:
            self.asked.append(value)
        else:
            assert (level, option, value) == (socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, 2 * self.asked[-1])


class NearEnd(socket.socket):
    """The broker's end of a connection whose round trips are short, however busy the machine is."""

    def getsockopt(self, level: int, option: int, length: int = 0) -> bytes:  # type: ignore[override]
        """Return the kernel's answer with a round trip of a microsecond."""
        found = super().getsockopt(level, option, length)
        return found[:148] + struct.pack("=I", 1) + found[152:]


def sizes(reads: list[tuple[int, int]]) -> list[int]:
    """Return the sizes that a buffer is given. Shapes: a read is its bytes and its time in ms."""
    with End(NEAR_US - 1) as end:
        buffer = ReceiveBuffer(end, 0)
        for read_bytes, now_ms in reads:
            buffer.after_read(read_bytes, now_ms)
        return end.asked


def test_a_buffer_grows_while_it_is_filled_quickly() -> None:
    """Each size is doubled after some quick fills in a row, up to a limit."""
    reads = [(LAST_BYTES, QUICK_MS * number) for number in range(10 * QUICK_FILLS)]
    assert sizes(reads) == [*(FIRST_BYTES << power for power in range(4)), LAST_BYTES]
    assert sizes(reads[: QUICK_FILLS - 1]) == [FIRST_BYTES]


def test_a_buffer_stays_while_what_fills_it_takes_long() -> None:
    """A turn takes little input of a publisher to many queues, so messages in a larger buffer only wait longer."""
    assert sizes([(FIRST_BYTES, (QUICK_MS + 1) * number) for number in range(10 * QUICK_FILLS)]) == [FIRST_BYTES]
    now_ms, reads = 0, []
    for number in range(10 * QUICK_FILLS):
        now_ms += 0 if number % QUICK_FILLS else QUICK_MS + 1  # the quick ones are not in a row
        reads.append((FIRST_BYTES, now_ms))
    assert sizes(reads) == [FIRST_BYTES]


def test_a_buffer_stays_while_it_is_not_full() -> None:
    """Small reads show that the client sends no more than the broker handles."""
    assert sizes([(FIRST_BYTES // 2 - 1, 0)] * 10 * QUICK_FILLS) == [FIRST_BYTES]


def test_only_near_clients_on_tcp_have_a_buffer_of_their_own() -> None:
    """Over a long link the octets in flight need room, so there the system decides."""
    with End(NEAR_US) as far, End(NEAR_US - 1, known_bytes=148) as vague:
        for end in (far, vague):
            buffer = ReceiveBuffer(end, 0)
            for _ in range(10 * QUICK_FILLS):
                buffer.after_read(LAST_BYTES, 0)
            assert not end.asked
    one, other = socket.socketpair()
    with one, other:
        assert ReceiveBuffer(one, 0).size_bytes == 0
    assert ReceiveBuffer(None, 0).size_bytes == 0


def test_a_near_client_always_has_room_for_a_whole_segment() -> None:
    """Otherwise it sends nothing until a timer of its kernel expires, again and again."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        with (
            socket.create_connection(server.getsockname()) as client,
            NearEnd(fileno=server.accept()[0].detach()) as end,
        ):
            pour(client, end, 4 << 20)  # the window grows, and with it the segments
            segment_bytes, window_bytes = segment_and_window(client)
            assert window_bytes >= 2 * segment_bytes > 64 << 10
            ReceiveBuffer(end, 0)
            pour(client, end, 4 << 20)
            segment_bytes, window_bytes = segment_and_window(client)
            assert segment_bytes <= window_bytes < 2 * segment_bytes


def pour(client: socket.socket, end: socket.socket, size_bytes: int) -> None:
    """Send this many octets, which the other end reads."""
    client.setblocking(False)
    end.settimeout(10)
    block = memoryview(bytes(1 << 16))
    sent = received = 0
    while received < size_bytes:
        with suppress(BlockingIOError):
            while sent < size_bytes:
                sent += client.send(block[: size_bytes - sent])
        received += len(end.recv(1 << 18))


def segment_and_window(client: socket.socket) -> tuple[int, int]:
    """Return the size of the segments that a client sends, and the window that it knows of."""
    facts = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)  # of struct tcp_info
    if len(facts) < 232:
        pytest.skip("Linux tells the window since 5.4")
    return struct.unpack_from("=I", facts, 16)[0], struct.unpack_from("=I", facts, 228)[0]
