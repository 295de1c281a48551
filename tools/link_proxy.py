"""A proxy between two brokers that injects faults of networks: resets, one-way loss, delay, low bandwidth."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from enum import Enum
from typing import Final

from broker.net.address import close_servers

PIECE_BYTES: Final = 65_536
LINE_PIECES: Final = 64  # in transit at most; then the sender's socket fills up
BEGINNING_TURNS: Final = 3  # from the accept of a connection to the first step of its task
RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: close sends RST


class Way(Enum):
    """A direction through the proxy."""

    TO_TARGET = "from the broker that dialled"
    FROM_TARGET = "to the broker that dialled"


class LinkProxy:
    """Listens on a free port of loopback and forwards to another port, in the loop of its test.

    Units: `delay_s` is added in each direction, `bytes_per_s` limits each direction, 0 means no limit.
    """

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.delay_s = 0.0
        self.bytes_per_s = 0
        self.passed_bytes = dict.fromkeys(Way, 0)
        self._target_port = target_port
        self._refuses = False
        self._flows = {way: asyncio.Event() for way in Way}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.heal()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening, and reset all connections."""
        close_servers([self._server])
        for _ in range(BEGINNING_TURNS):
            await asyncio.sleep(0)
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # aborted sockets are closed

    # -- faults -------------------------------------------------------------------------------------------------------

    def cut(self, *, stays: bool = False) -> None:
        """Reset all connections and, with `stays`, new ones until `heal`."""
        self._refuses = stays
        for writer in self._writers:
            _reset(writer)

    def lose(self, *ways: Way) -> None:
        """Forward nothing in these directions, as a network that loses every packet; neither end notices."""
        for way in ways:
            self._flows[way].clear()

    def heal(self) -> None:
        """Forward again; lost data of connections that are still open arrives, as if TCP retransmitted it."""
        self._refuses = False
        for flow in self._flows.values():
            flow.set()

    # -- connections --------------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            with suppress(OSError, asyncio.CancelledError):
                await self._forward(reader, writer)
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            _reset(writer)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward in both directions until one of them ends."""
        if self._refuses:
            return
        target_reader, target = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers.add(target)
        ways = [
            asyncio.create_task(self._carry(Way.TO_TARGET, reader, target)),
            asyncio.create_task(self._carry(Way.FROM_TARGET, target_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._writers.discard(target)
            _reset(target)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _carry(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(LINE_PIECES)
        delivering = asyncio.create_task(self._deliver(way, line, writer))
        loop = asyncio.get_running_loop()
        try:
            while data := await reader.read(PIECE_BYTES):
                await line.put((loop.time() + self.delay_s, data))
            await line.join()
        finally:
            delivering.cancel()
            await asyncio.gather(delivering, return_exceptions=True)

    async def _deliver(self, way: Way, line: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s, data = await line.get()
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            if self.bytes_per_s:
                await asyncio.sleep(len(data) / self.bytes_per_s)
            await self._flows[way].wait()
            writer.write(data)
            await writer.drain()
            self.passed_bytes[way] += len(data)
            line.task_done()


def _reset(writer: asyncio.StreamWriter) -> None:
    if not writer.transport.is_closing():
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
