"""A bare uvloop relay: it copies a publisher's bytes to the consumer and confirms whole messages.

The rate that the generator reaches against the relay is the generator's own ceiling, and the relay's CPU time is what
the kernel and the event loop alone need for the same bytes. `python -m broker.perf.relay` prints its port as one line
and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

from broker.perf import wire
from broker.perf.peer import RELAY_HEAD


class Relay(asyncio.Protocol):
    """One connection: it begins with the head of a `RelayPeer`; a publisher's further bytes go to the consumer."""

    consumer: asyncio.Transport | None = None
    publisher: asyncio.Transport | None = None

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.head = b""
        self.stride_bytes = 0
        self.forwarded_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if Relay.consumer is self.transport:
            Relay.consumer = None
        if Relay.publisher is self.transport:
            Relay.publisher = None

    def pause_writing(self) -> None:
        if Relay.publisher:
            Relay.publisher.pause_reading()

    def resume_writing(self) -> None:
        if Relay.publisher:
            Relay.publisher.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.stride_bytes:
            self._forward(data)
            return
        self.head += data
        if len(self.head) == RELAY_HEAD.size:
            (self.stride_bytes,) = RELAY_HEAD.unpack(self.head)
            if self.stride_bytes:
                Relay.publisher = self.transport
            else:
                Relay.consumer = self.transport
            self.transport.write(b"\x00")

    def _forward(self, data: bytes) -> None:
        before = self.forwarded_bytes // self.stride_bytes
        self.forwarded_bytes += len(data)
        if Relay.consumer:
            Relay.consumer.write(data)
        if (tag := self.forwarded_bytes // self.stride_bytes) > before:
            self.transport.write(wire.basic_ack(wire.PUBLISH_CHANNEL, tag, multiple=True))


async def serve() -> None:
    """Listen on a free loopback port until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Relay, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.buffer.read)
    server.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve())
