"""The kernel's receive buffer of a nearby publisher, sized for a few milliseconds of input.

Bytes that a client sends faster than the broker handles them wait in this buffer, which adds to the latency of
messages. Linux sizes the buffer for the rate of the link: on a fast link, it grows to megabytes, which may take seconds
to handle. A long round trip needs a large buffer, because many bytes are in flight; then the system's size is used.
"""

from __future__ import annotations

import socket
import struct
import sys
from contextlib import suppress
from typing import Final

LARGE_READ_BYTES: Final = 16 << 10  # a client whose reads are smaller is not faster than the broker
# The window is twice this size, with room for a loopback segment of 65,483 octets: a client that has seen a large
# window sends no smaller segments, and waits 200 ms before each if the window has no room for it.
FIRST_BYTES: Final = 36 << 10
LAST_BYTES: Final = 512 << 10  # the size of two of the largest reads; net.core.rmem_max limits it too
QUICK_MS: Final = 2  # a buffer that is full again within this time is too small
QUICK_FILLS: Final = 8  # in a row, before the buffer grows: an empty queue accepts the first messages quickly
NEAR_US: Final = 1000  # a client is near when its shortest round trip takes less than this
_ROUND_TRIP: Final = struct.Struct("=148xI")  # tcpi_min_rtt of struct tcp_info: other times include delayed ACKs


class ReceiveBuffer:
    """The receive buffer of one client, sized for the rate at which the broker handles its input.

    It is made small at the client's first large read, and doubles while the broker empties it quickly.
    Units: `size_bytes` is the requested size, 0 for the system's own size; the kernel allocates twice as much, for
        octets and its own headers.
    """

    __slots__ = ("_end", "_filled_ms", "_quick_fills", "size_bytes")

    def __init__(self, end: socket.socket | None, now_ms: int) -> None:
        self._end = end
        self._filled_ms = now_ms  # the time of the last read of a full buffer
        self._quick_fills = 0
        self.size_bytes = 0
        if end is not None and _is_near(end):
            self._resize(FIRST_BYTES)

    def after_read(self, read_bytes: int, now_ms: int) -> None:
        """Double the buffer when it was filled quickly several times in a row."""
        size_bytes = self.size_bytes
        if not 0 < size_bytes < LAST_BYTES or read_bytes < size_bytes // 2:
            return
        self._quick_fills = self._quick_fills + 1 if now_ms - self._filled_ms <= QUICK_MS else 0
        self._filled_ms = now_ms
        if self._quick_fills == QUICK_FILLS:
            self._quick_fills = 0
            self._resize(min(2 * size_bytes, LAST_BYTES))

    def _resize(self, size_bytes: int) -> None:
        """Set the size of the kernel's buffer, unless the client has disconnected."""
        end = self._end
        assert end is not None
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)
            # Otherwise Linux limits the window by the earlier size, and the client keeps sending small segments.
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, 2 * size_bytes)
            self.size_bytes = size_bytes


def _is_near(end: socket.socket) -> bool:
    """Return whether the round trip of a TCP connection is short; False if the system does not report it."""
    if sys.platform != "linux":
        return False
    try:
        facts = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ROUND_TRIP.size)
    except OSError:  # not a TCP socket, or the client has disconnected
        return False
    return len(facts) >= _ROUND_TRIP.size and int(_ROUND_TRIP.unpack(facts)[0]) < NEAR_US
