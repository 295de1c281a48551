"""The kernel's receive buffer of a near client: it holds as much as the broker handles in a few turns.

What a publisher sends ahead of the broker waits in that buffer, and the wait is latency of its messages. Linux sizes
the buffer for the rate of the link: on a quick one it holds megabytes, which are seconds of publishes to fifty queues.
Over a long link those megabytes are in flight, so there the buffer stays as the system sizes it.
"""

from __future__ import annotations

import socket
import struct
import sys
from contextlib import suppress
from typing import Final

__all__ = ["MOST_BYTES", "NEAR_US", "QUICK_TURNS", "ReceiveBuffer", "receive_buffer_of"]

NEAR_US: Final = 1000
"""A client is near when its handshake's round trip takes less than this."""
QUICK_TURNS: Final = 2
"""A buffer grows while what filled it is handled within this many turns."""
MOST_BYTES: Final = 256 << 10
"""No buffer grows beyond this, which fills the largest read; the system's own limit is net.core.rmem_max."""
_ROUND_TRIP: Final = struct.Struct("=68xI")  # of struct tcp_info, tcpi_rtt


class ReceiveBuffer:
    """Doubles the receive buffer of one client while the broker handles quickly what filled it.

    Units: ``size_bytes`` is what the kernel was asked for; it takes twice that for octets and its own headers.
    """

    __slots__ = ("_end", "_filled_at", "size_bytes")

    def __init__(self, end: socket.socket, size_bytes: int) -> None:
        self._end = end
        self._filled_at = 0  # the number of the turn that followed the last read of a full buffer
        self.size_bytes = size_bytes

    def after_read(self, read_bytes: int, turns: int) -> None:
        """Double the buffer when it was filled twice within a few turns. `turns` is how many there have been."""
        if read_bytes < self.size_bytes // 2:
            return
        if turns - self._filled_at <= QUICK_TURNS and self.size_bytes < MOST_BYTES:
            self.size_bytes *= 2
            with suppress(OSError):  # the client is gone
                _set_size(self._end, self.size_bytes)
                # Linux bounds the window by the first size too: the client would go on sending small segments.
                self._end.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, 2 * self.size_bytes)
        self._filled_at = turns


def receive_buffer_of(end: socket.socket | None, size_bytes: int) -> ReceiveBuffer | None:
    """Give the client at this end a receive buffer of that size if it is near, and return the buffer to enlarge.

    Call it before the client sends much: what exceeds a buffer that has shrunk is dropped, and sent again 200 ms later.
    """
    if sys.platform != "linux" or end is None or not size_bytes:
        return None
    try:
        facts = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ROUND_TRIP.size)
        if len(facts) < _ROUND_TRIP.size or _ROUND_TRIP.unpack(facts)[0] >= NEAR_US:
            return None
        _set_size(end, size_bytes)
    except OSError:  # not a TCP socket, or the client is gone
        return None
    return ReceiveBuffer(end, size_bytes)


def _set_size(end: socket.socket, size_bytes: int) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)
