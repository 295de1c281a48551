"""What no broker can go below: bare relays of the same bytes.

`python -m bench.messages.relays wide` sends a publisher's bytes to every consumer, `pair` delivers each message of one
client to the other. Both print their URL and serve until standard input ends.
"""

from __future__ import annotations

import asyncio
import sys

from bench.brokers import relay
from bench.run import Figures
from broker.perf import relay as bare
from broker.perf import wire
from broker.perf.conductor import Conductor
from broker.perf.crew import RunFailed
from broker.perf.interruption import Interruption
from broker.perf.load import Load
from broker.perf.progress import RunProgress
from broker.perf.receiver import ReceiverPace
from broker.perf.spool import Material
from broker.perf.wire import CONSUME_CHANNEL, CONSUMER_TAG

_PUBLISH, _CONSUME = (wire.METHOD_HEAD.pack(*name) for name in (wire.BASIC_PUBLISH, wire.BASIC_CONSUME))
_NAME_AT = 13  # after frame header, method header and two reserved octets: exchange of a publish, queue of a consume
_KEYS = 10_000


class WideRelay(bare.Relay):
    """One connection; reading from a publisher pauses while any consumer lags."""

    consumers: list[asyncio.Transport] = []
    full: set[asyncio.Transport] = set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.transport in WideRelay.consumers:
            WideRelay.consumers.remove(self.transport)
        self.resume_writing()

    def pause_writing(self) -> None:
        WideRelay.full.add(self.transport)
        super().pause_writing()

    def resume_writing(self) -> None:
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


class PairRelay(bare.Relay):
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


async def serve(kind: type[bare.Relay]) -> None:
    """Listen on a free loopback port until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(kind, "127.0.0.1", 0)
    print(f"amqp://guest:guest@127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.buffer.read)
    server.close()


def relayed(body_bytes: int, consumers: int, seconds: float, *, per_s: float | None = None, window: int = 0) -> Figures:
    """Return the cost per delivery of a relay that sends every byte to every consumer, and its latency.

    Without consumers the relay only reads, and with a window it confirms; the figures are then per publish.

    Raises: RunFailed.
    """
    keys = tuple(f"bench.{number % 97:02d}.{number:08d}" for number in range(_KEYS))
    with relay("broker.perf.relay") if window else relay("bench.messages.relays", "wide") as broker:
        load = Load(
            address=broker.address,
            material=Material("bench", keys, body_bytes, relayed=True),
            producers=1,
            queues=(("relay",),) * consumers,
            demand=ReceiverPace(0, body_bytes),
            window=window,
            per_s=per_s,
            seconds=seconds,
            copies=None,
            processes=1,
        )
        with Interruption() as interruption:
            outcome = Conductor(load, RunProgress(quiet=True), interruption, broker.processes).run()
    used = outcome.process()
    count, took_s = outcome.tally.published, outcome.publish_s
    if consumers:
        count, took_s = outcome.tally.delivered, outcome.deliver_s
    if outcome.failures or not used or not count:
        raise RunFailed(outcome.failures[0] if outcome.failures else "nothing came through the relay")
    figures: Figures = {"messages": count, "cpu_us": used.cpu_s / count * 1e6}
    if not per_s:
        figures["per_s"] = count / took_s
    times = outcome.confirm_times if window else outcome.due_times
    if not times.count:
        return figures
    p50, p99 = times.percentiles((50, 99))
    return figures | {"p50_us": p50 / 1e3, "p99_us": p99 / 1e3}


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve({"wide": WideRelay, "pair": PairRelay}[sys.argv[1]]))
