"""The transport of an HTTP client, whose end does not cut off the last answer."""

from __future__ import annotations

import asyncio
from typing import Any, Final

__all__ = ["LingeringTransport"]

LINGER_S: Final = 2.0
LINGER_BYTES: Final = 1 << 20


class LingeringTransport(asyncio.Transport):
    """Passes everything on to the transport of a connection, but ends its own side only when it closes.

    It then waits for a moment until the client has closed too, and discards what still comes: if a socket with unread
    input is closed, the kernel discards output that the client has not read yet.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._closing = False
        self._left_bytes = LINGER_BYTES
        self._limit: asyncio.TimerHandle | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known about the connection."""
        return self._transport.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        if not self.is_closing():
            self._transport.write(data)

    def pause_reading(self) -> None:
        """Read no more for now."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self._transport.resume_reading()

    def is_closing(self) -> bool:
        """Return whether the end has begun."""
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """Send what is left, and end."""
        if self.is_closing():
            return
        self._closing = True
        self._limit = asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:  # TLS has its own close
            self._transport.close()

    def close_idle(self) -> None:
        """End a connection on which nothing is asked and nothing is left to send."""
        if self._transport.get_write_buffer_size():
            self.close()
        else:
            self._transport.abort()

    def abort(self) -> None:
        """End now."""
        self._transport.abort()

    def discard(self, size_bytes: int) -> None:
        """Count what comes during the end."""
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            self._transport.abort()

    def forget(self) -> None:
        """Wait no longer: the connection has ended."""
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
