"""A bare uvloop relay: answers the handshake, then copies a publisher's bytes to the consumer and confirms them.

The rate that the generator reaches against the relay is the generator's own ceiling. The relay's CPU time is what the
kernel and the event loop alone need for the same bytes. `python -m broker.perf.relay` prints one line with its URL and
serves until its input ends.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

from broker.perf import wire
from broker.perf.peer import next_frame

_ARGUMENTS: dict[tuple[int, int], bytes] = {  # of the answer to each method, whose own number is the next one
    wire.CONNECTION_OPEN: b"\x00",
    wire.CHANNEL_OPEN: wire.long_string(b""),
    wire.QUEUE_DECLARE: wire.short_string("") + bytes(8),
    wire.QUEUE_DELETE: bytes(4),
    wire.BASIC_CONSUME: wire.short_string(""),
    **dict.fromkeys((wire.EXCHANGE_DECLARE, wire.EXCHANGE_DELETE, wire.QUEUE_BIND, wire.CONNECTION_CLOSE), b""),
    **dict.fromkeys((wire.BASIC_QOS, wire.CONFIRM_SELECT), b""),
}
_BODY_SIZE_AT = 11  # in a content header's frame
_PROPERTIES = wire.long_string(b"\x07productS" + wire.long_string(b"bare relay"))
_START = b"\x00\x09" + _PROPERTIES + wire.long_string(b"PLAIN") + wire.long_string(b"en_US")


class Relay(asyncio.Protocol):
    """One connection: AMQP control until the first message, then a pipe into the consumer's connection."""

    consumer: asyncio.Transport | None = None
    publisher: asyncio.Transport | None = None

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.held = bytearray()
        self.stride_bytes = 0
        self.passed_bytes = 0
        self.confirms = False
        self.begun = False

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
        if self.stride_bytes and not (self.passed_bytes % self.stride_bytes == 0 and _is_control(data)):
            self._pass_on(data)
        else:
            self._control(data)

    def _pass_on(self, data: bytes) -> None:
        before = self.passed_bytes // self.stride_bytes
        self.passed_bytes += len(data)
        if Relay.consumer:
            Relay.consumer.write(data)
        if self.confirms and (tag := self.passed_bytes // self.stride_bytes) > before:
            self.transport.write(wire.basic_ack(1, tag, multiple=True))

    def _control(self, data: bytes) -> None:
        self.held += data
        if not self.begun and len(self.held) >= len(wire.PROTOCOL_HEADER):
            self.begun = True
            del self.held[: len(wire.PROTOCOL_HEADER)]
            self.transport.write(wire.method(0, wire.CONNECTION_START, _START))
        while len(self.held) >= wire.FRAME_OVERHEAD_BYTES + 4:
            channel = wire.FRAME_HEAD.unpack_from(self.held)[1]
            name = cast("tuple[int, int]", wire.METHOD_HEAD.unpack_from(self.held, 7))
            if name == wire.BASIC_DELIVER:
                self._learn()
                return
            if next_frame(self.held) is None:
                return
            self._answer(channel, name)

    def _learn(self) -> None:
        """Take the size of the first message, once its method and header are complete, as the size of all."""
        header_at = _frame_end(self.held, 0)
        if len(self.held) < header_at + _BODY_SIZE_AT + 8:
            return
        body_bytes = int.from_bytes(self.held[header_at + _BODY_SIZE_AT :][:8], "big")
        frames = -(-body_bytes // (wire.FRAME_MAX_BYTES - wire.FRAME_OVERHEAD_BYTES))
        self.stride_bytes = _frame_end(self.held, header_at) + body_bytes + frames * wire.FRAME_OVERHEAD_BYTES
        Relay.publisher = self.transport
        self._pass_on(bytes(self.held))
        self.held.clear()

    def _answer(self, channel: int, name: tuple[int, int]) -> None:
        if name == wire.BASIC_CONSUME:
            Relay.consumer = self.transport
        elif name == wire.CONFIRM_SELECT:
            self.confirms = True
        if name == wire.CONNECTION_START_OK:
            self.transport.write(wire.method(0, wire.CONNECTION_TUNE, wire.TUNE.pack(2047, wire.FRAME_MAX_BYTES, 0)))
        elif name in _ARGUMENTS:
            self.transport.write(wire.method(channel, (name[0], name[1] + 1), _ARGUMENTS[name]))
        if name == wire.CONNECTION_CLOSE:
            self.transport.close()


def _frame_end(data: bytearray, at: int) -> int:
    """Return where the frame that begins at `at` ends."""
    return at + int(wire.FRAME_HEAD.unpack_from(data, at)[2]) + wire.FRAME_OVERHEAD_BYTES


def _is_control(data: bytes) -> bool:
    return data[0] == wire.METHOD and data[7:9] in (b"\x00\x0a", b"\x00\x14", b"\x00\x32", b"\x00\x28")


async def serve() -> None:
    """Listen on a free loopback port until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Relay, "127.0.0.1", 0)
    print(f"amqp://guest:guest@127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.buffer.read)
    server.close()


def main() -> None:
    """Run the relay on uvloop."""
    import uvloop

    uvloop.run(serve())


if __name__ == "__main__":
    main()
