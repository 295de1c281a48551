"""Declares and binds per second in a cluster: `python -m bench.cluster.declares`.

Several connections to node A keep a number of methods outstanding together: pipelined on one channel each, or one per
channel. An answer counts when it has arrived, so every node has applied what it answers.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from pamqp import base, commands, header

from bench.brokers import PROJECT, Broker
from bench.cluster.ground import Ground
from bench.packages import compiled_package
from broker.amqp.codec import encode_method
from broker.amqp.framing import FRAME_OVERHEAD_BYTES
from broker.amqp.wire import FRAME_HEAD
from broker.perf.crew import RunFailed

_QUEUE: Final = "bench-declares"
_READ_BYTES: Final = 1 << 16
_CLOSES: Final = (b"\x00\x14\x00\x28", b"\x00\x0a\x00\x32")  # channel.close, connection.close
Make = Callable[[int], base.Frame]


class _Client:
    """One connection with some channels."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._rest = b""

    @classmethod
    async def connect(cls, broker: Broker, channels: int) -> _Client:
        """Return a client with its channels open."""
        address = broker.address
        self = cls(*await asyncio.open_connection(address.host, address.port))
        self._writer.write(header.ProtocolHeader().marshal())
        await self._answers(1)
        response = f"\0{address.user}\0{address.password}"
        self._send(0, commands.Connection.StartOk({}, "PLAIN", response, "en_US"))
        await self._answers(1)
        self._send(0, commands.Connection.TuneOk(2047, 131072, 0))
        self._send(0, commands.Connection.Open(address.vhost))
        await self._answers(1)
        for channel in range(1, channels + 1):
            self._send(channel, commands.Channel.Open())
        await self._answers(channels)
        return self

    async def run(self, make: Make, numbers: Iterator[int], channels: int, window: int) -> int:
        """Keep `window` methods outstanding until no numbers are left, and return how many were answered."""
        answered = outstanding = 0
        while True:
            while outstanding < window and (number := next(numbers, None)) is not None:
                self._send(number % channels + 1, make(number))
                outstanding += 1
            if not outstanding:
                return answered
            count = await self._answers(1)
            answered += count
            outstanding -= count

    def close(self) -> None:
        """End the connection."""
        self._writer.close()

    def _send(self, channel: int, method: base.Frame) -> None:
        self._writer.write(encode_method(channel, method))

    async def _answers(self, least: int) -> int:
        """Wait for so many answers, and return how many came. Raises: RunFailed when the broker closes."""
        count = 0
        while count < least:
            piece = await self._reader.read(_READ_BYTES)
            if not piece:
                raise RunFailed("the broker closed the connection")
            self._rest += piece
            while len(self._rest) > FRAME_OVERHEAD_BYTES:
                end = FRAME_HEAD.unpack_from(self._rest)[2] + FRAME_OVERHEAD_BYTES
                if len(self._rest) < end:
                    break
                if self._rest[7:11] in _CLOSES:
                    raise RunFailed(str(self._rest[11:end]))
                self._rest = self._rest[end:]
                count += 1
        return count


async def _measure(broker: Broker, make: Make, options: argparse.Namespace, *, spread: bool) -> float:
    """Return methods per second."""
    window = options.outstanding // options.connections
    channels = window if spread else 1
    clients = [await _Client.connect(broker, channels) for _ in range(options.connections)]
    share = options.methods // options.connections
    begun = time.perf_counter()
    answered = await asyncio.gather(
        *(
            client.run(make, iter(range(place * share, (place + 1) * share)), channels, window)
            for place, client in enumerate(clients)
        )
    )
    elapsed_s = time.perf_counter() - begun
    for client in clients:
        client.close()
    return sum(answered) / elapsed_s


def _declare(number: int) -> base.Frame:
    return commands.Queue.Declare(queue=f"{_QUEUE}-{number}", durable=True)


def _bind(number: int) -> base.Frame:
    return commands.Queue.Bind(queue=f"{_QUEUE}-0", exchange="amq.topic", routing_key=f"key.{number}")


def main() -> None:
    """Measure clusters of several sizes, and print methods per second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--connections", type=int, default=20)
    parser.add_argument("--outstanding", type=int, default=100, help="methods of all connections together")
    parser.add_argument("--methods", type=int, default=10_000)
    parser.add_argument("--interpreted", action="store_true", help="run the sources, not compiled modules")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slotmq-bench-") as folder:
        ground = Ground(Path(folder), PROJECT if options.interpreted else compiled_package(), lease_ms=3000)
        try:
            for count in options.nodes:
                for spread in (False, True):
                    with ground.nodes(count) as brokers:
                        found = [
                            asyncio.run(_measure(brokers[0], make, options, spread=spread))
                            for make in (_declare, _bind)
                        ]
                    way = "one per channel" if spread else "pipelined"
                    print(f"{count} nodes, {way}: {found[0]:,.0f} declares/s, {found[1]:,.0f} binds/s", flush=True)
        finally:
            ground.close()


if __name__ == "__main__":
    main()
