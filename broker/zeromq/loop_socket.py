"""A ØMQ socket on any event loop: its descriptor is watched, and no call blocks.

The descriptor signals once that the socket may have events, not that it has a message. So the socket is read until it
is empty, and again after each send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import zmq

READS_AT_ONCE: Final = 200  # messages in one callback of the loop, so that other connections are served


class LoopSocket:
    """Receive the messages of a ØMQ socket on the loop, and send messages.

    Shapes: `received` is called with the frames of each message, `read` after each batch, even an empty one.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        received: Callable[[list[bytes]], None],
        read: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket = socket
        self._received = received
        self._read = read
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._is_reading = False
        self._scheduled: asyncio.Handle | None = None

    def resume(self) -> None:
        """Start receiving."""
        if not self._is_reading:
            self._is_reading = True
            asyncio.get_running_loop().add_reader(self._descriptor, self._read_batch)
            self._schedule()

    def pause(self) -> None:
        """Receive nothing until `resume`: messages stay in the socket, up to its high-water mark."""
        if self._is_reading:
            self._is_reading = False
            asyncio.get_running_loop().remove_reader(self._descriptor)
            if self._scheduled is not None:
                self._scheduled.cancel()
                self._scheduled = None

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message and return True, or return False if it cannot be sent now."""
        try:
            self._socket.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            return False
        finally:
            self._schedule()  # sending has consumed the descriptor's signal
        return True

    def set(self, option: int, value: int) -> None:
        self._socket.setsockopt(option, value)

    def receive_all(self) -> None:
        """Receive all messages that have arrived, unless receiving is paused."""
        while self._receive():
            pass

    def close(self, linger_ms: int) -> None:
        """Close the socket. ØMQ continues to send its messages for at most `linger_ms` while the context ends."""
        self.pause()
        self._socket.close(linger_ms)

    def _schedule(self) -> None:
        if self._is_reading and self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self._read_batch)

    def _read_batch(self) -> None:
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        if self._receive():
            self._schedule()

    def _receive(self) -> bool:
        """Receive a batch of messages, and return whether there may be more."""
        more = True
        for _ in range(READS_AT_ONCE):
            if not self._is_reading:  # an earlier message has paused the socket
                break
            try:
                frames: Any = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                more = False
                break
            self._received(frames)
        self._read()
        return more and self._is_reading
