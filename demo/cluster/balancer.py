"""A load balancer: passes each connection on to the next node that is in service, and ends it with that node."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import cycle

from demo.ledger import Address

READ_BYTES = 1 << 16


class Balancer:
    """Listens in a thread of its own. A node out of service gets no new connections; those that it has stay."""

    def __init__(self) -> None:
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._nodes: dict[str, Address] = {}
        self._turn: Iterator[str] = iter(())
        self._out: set[str] = set()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def start(self, nodes: dict[str, Address]) -> None:
        """Listen on a free port of this machine."""
        self._nodes, self._turn = nodes, cycle(nodes)
        self._thread.start()
        self._listening.wait()

    def take_out(self, name: str) -> None:
        """Give a node no more connections."""
        self._out.add(name)

    def take_in(self, name: str) -> None:
        """Give a node connections again."""
        self._out.discard(name)

    def close(self) -> None:
        """Stop listening, and end all connections."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _serve(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._connected, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        self._loop.run_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in self._nodes:
            name = next(self._turn)
            if name in self._out:
                continue
            node = self._nodes[name]
            try:
                there_reader, there_writer = await asyncio.open_connection(node.host, node.port)
            except OSError:
                continue
            await asyncio.gather(_pass(reader, there_writer), _pass(there_reader, writer))
            return
        writer.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction until it ends."""
    try:
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
