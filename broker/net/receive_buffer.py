"""The kernel's receive buffer of a nearby publisher, sized for the input of a few milliseconds. Bytes sent ahead of the
broker wait in that buffer, which adds to the latency of messages. Linux sizes the buffer for the rate of the link: on a
fast one it holds megabytes, which are seconds of publishes to fifty queues. Over a long link those megabytes are in
flight, so there the system's size is kept.
"""

from __future__ import annotations

import socket
import struct
import sys
from contextlib import suppress
from typing import Final

LARGE_READ_BYTES: Final = 16 << 10  # a client whose reads are smaller is not ahead of the broker
# Its window, twice that, has room for a segment of loopback, 65,483 octets: a client that once saw a large window sends
# no smaller ones, and would wait 200 ms for each.
FIRST_BYTES: Final = 36 << 10
MOST_BYTES: Final = 512 << 10  # two of the largest reads; the system limits it by net.core.rmem_max
QUICK_MS: Final = 2  # a buffer was filled too quickly when it is full again within this time
QUICK_FILLS: Final = 8  # in a row, before the buffer grows: a queue without a backlog takes the first ones quickly
NEAR_US: Final = 1000  # a client is near when its shortest round trip takes less than this
_ROUND_TRIP: Final = struct.Struct("=148xI")  # of struct tcp_info, tcpi_min_rtt: others have delayed ACKs in them


class ReceiveBuffer:
    """Size the receive buffer of one client for the rate at which the broker handles its input. It begins small, at the
    client's first large read, and doubles while the broker handles a full buffer quickly. Units: ``size_bytes`` is the
    requested size, 0 for the system's own size; the kernel allocates twice that for octets and its own headers.
    """

    __slots__ = ("_end", "_filled_ms", "_quick_fills", "size_bytes")

    def __init__(self, end: socket.socket | None, now_ms: int) -> None:
        self._end = end
        self._filled_ms = now_ms  # when a full buffer was read last
        self._quick_fills = 0
        self.size_bytes = 0
        if end is not None and _is_near(end):
            self._resize(FIRST_BYTES)

    def after_read(self, read_bytes: int, now_ms: int) -> None:
        """Double the buffer when it was filled quickly several times in a row."""
        size_bytes = self.size_bytes
        if not 0 < size_bytes < MOST_BYTES or read_bytes < size_bytes // 2:
            return
        self._quick_fills = self._quick_fills + 1 if now_ms - self._filled_ms <= QUICK_MS else 0
        self._filled_ms = now_ms
        if self._quick_fills == QUICK_FILLS:
            self._quick_fills = 0
            self._resize(min(2 * size_bytes, MOST_BYTES))

    def _resize(self, size_bytes: int) -> None:
        """Set the size of the kernel's buffer, unless the client has disconnected."""
        end = self._end
        assert end is not None
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)
            # Linux bounds the window by an earlier size too: the client would keep sending small segments.
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, 2 * size_bytes)
            self.size_bytes = size_bytes


def _is_near(end: socket.socket) -> bool:
    """Return whether the round trip of a TCP connection is short; False where the system does not tell."""
    if sys.platform != "linux":
        return False
    try:
        facts = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ROUND_TRIP.size)
    except OSError:  # not a TCP socket, or the client has disconnected
        return False
    return len(facts) >= _ROUND_TRIP.size and int(_ROUND_TRIP.unpack(facts)[0]) < NEAR_US
