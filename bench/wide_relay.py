"""The bare relay of `broker.perf`, which sends a publisher's bytes to every consumer instead of to one."""

from __future__ import annotations

import asyncio
import sys

from broker.perf import relay, wire


class WideRelay(relay.Relay):
    """One connection; reading from a publisher pauses while any consumer lags."""

    consumers: list[asyncio.Transport] = []
    full: set[asyncio.Transport] = set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.transport in WideRelay.consumers:
            WideRelay.consumers.remove(self.transport)
        self._caught_up()

    def pause_writing(self) -> None:
        WideRelay.full.add(self.transport)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._caught_up()

    def _caught_up(self) -> None:
        WideRelay.full.discard(self.transport)
        if not WideRelay.full:
            super().resume_writing()

    def _pass_on(self, data: bytes) -> None:
        for consumer in WideRelay.consumers:
            consumer.write(data)

    def _answer(self, channel: int, name: tuple[int, int]) -> None:
        if name == wire.BASIC_CONSUME:
            WideRelay.consumers.append(self.transport)
        super()._answer(channel, name)


async def serve() -> None:
    """Listen on a free loopback port until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(WideRelay, "127.0.0.1", 0)
    print(f"amqp://guest:guest@127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.buffer.read)
    server.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve())
