"""A ØMQ socket on any event loop: its descriptor is watched, and nothing ever blocks. The descriptor signals, once,
that the socket has to check for events, not that there is a message: so the socket is read until it is empty, and
checked again after each send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import zmq

READS_AT_ONCE: Final = 200  # messages in one callback, so that connections get their turn


class LoopSocket:
    """Receive the messages of a ØMQ socket on the loop, and send.

    Shapes: `received` gets the frames of each message, `read` is called after the last one of a callback.
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
        self._reads = False
        self._due: asyncio.Handle | None = None

    def resume(self) -> None:
        """Receive from now on."""
        if not self._reads:
            self._reads = True
            asyncio.get_running_loop().add_reader(self._descriptor, self._look)
            self._look_soon()

    def pause(self) -> None:
        """Receive nothing until `resume`: messages stay in the socket, up to its high-water mark."""
        if self._reads:
            self._reads = False
            asyncio.get_running_loop().remove_reader(self._descriptor)
            if self._due is not None:
                self._due.cancel()
                self._due = None

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message and return True, False if it cannot be sent now."""
        try:
            self._socket.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            return False
        finally:
            self._look_soon()  # sending has used up the descriptor's signal
        return True

    def set(self, option: int, value: int) -> None:
        """Set an option."""
        self._socket.setsockopt(option, value)

    def receive_all(self) -> None:
        """Receive all messages that have arrived."""
        while self._receive():
            """There may be more."""

    def close(self, linger_ms: int) -> None:
        """Close; sent messages may still leave for `linger_ms`, while the context is terminated."""
        self.pause()
        self._socket.close(linger_ms)

    def _look_soon(self) -> None:
        if self._reads and self._due is None:
            self._due = asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._receive():
            self._look_soon()

    def _receive(self) -> bool:
        """Receive some messages, and return whether there may be more."""
        more = True
        for _ in range(READS_AT_ONCE):
            if not self._reads:  # a message before this one has paused it
                break
            try:
                frames: Any = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                more = False
                break
            self._received(frames)
        self._read()
        return more and self._reads
