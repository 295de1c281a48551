"""A bare relay for clients that wait for each single message: it delivers one client's message to the other."""

from __future__ import annotations

import asyncio
import sys

from broker.perf import relay, wire
from broker.perf.wire import CONSUME_CHANNEL, CONSUMER_TAG

_PUBLISH, _CONSUME = (wire.METHOD_HEAD.pack(*name) for name in (wire.BASIC_PUBLISH, wire.BASIC_CONSUME))
_NAME_AT = 13  # after frame header, method header and two reserved octets: exchange of a publish, queue of a consume


class PairRelay(relay.Relay):
    """One connection; a publish arrives in one piece, because a client sends only after the other has answered."""

    sides: dict[bytes, asyncio.Transport] = {}

    def data_received(self, data: bytes) -> None:
        method = data[7:11]
        if method == _PUBLISH:
            key, content_at = _name(data, _NAME_AT + 1 + data[_NAME_AT]), int.from_bytes(data[3:7], "big") + 8
            arguments = wire.short_string(CONSUMER_TAG) + bytes(10) + bytes((len(key),)) + key
            head = wire.method(CONSUME_CHANNEL, wire.BASIC_DELIVER, arguments)
            PairRelay.sides[key].write(head + data[content_at:])
            return
        if method == _CONSUME:
            PairRelay.sides[_name(data, _NAME_AT)] = self.transport
        super().data_received(data)


def _name(data: bytes, at: int) -> bytes:
    return data[at + 1 : at + 1 + data[at]]


async def serve() -> None:
    """Listen on a free loopback port until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(PairRelay, "127.0.0.1", 0)
    print(f"amqp://guest:guest@127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.buffer.read)
    server.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve())
