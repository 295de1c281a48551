"""How long many subscriptions take over a long link: `python -m bench.overlay.subscriptions`.

Two leaves are joined by a link with a round trip of 100 ms. Bindings are made at one leaf until the other knows all of
them and publishes by them. Then the link is reset: all subscriptions are sent again, and one message for each of them
shows that none is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from bench.brokers import PROJECT, Broker, slotmq
from bench.packages import compiled_package
from broker.cli.control_client import ask
from broker.perf import wire
from broker.perf.peer import PeerConnection
from tools.link_proxy import LinkProxy

EXCHANGE: Final = "orders"
QUEUE: Final = "subscriber"
LIMIT_S: Final = 120.0
_LOOK_S: Final = 0.25
_PUBLISHED_AT_ONCE: Final = 1000
_CHANNEL: Final = 1

SETTINGS: Final = """
[overlay]
exchanges = ["orders"]
patterns_max = 1000000

[[overlay.node]]
broker = {own}
node = {own}
leaf = true
neighbours = [{{ node = {other}, broker = {other}{url} }}]
"""


def patterns(count: int) -> list[str]:
    """Return so many binding keys, of which none covers another; every second one has a wildcard."""
    return [f"order.{number}.{'*' if number % 2 else 'paid'}" for number in range(count)]


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a stretch of the run took: seconds, and CPU seconds of the subscriber's and of the publisher's broker."""

    name: str
    elapsed_s: float
    subscriber_cpu_s: float
    publisher_cpu_s: float


class Pair:
    """Two leaves, and a proxy in the place of the network between them."""

    def __init__(self, folder: Path, package: Path) -> None:
        self._folder = folder
        self._package = package
        self.running = ExitStack()
        self.proxy: LinkProxy
        self.near: Broker
        self.far: Broker

    async def start(self, round_trip_s: float) -> None:
        """Start both. Raises: NotStarted."""
        self.near = await asyncio.to_thread(self._start, "near", "far", None)
        self.proxy = LinkProxy(self.near.address.port)
        self.proxy.delay_s = round_trip_s / 2
        await self.proxy.start()
        self.far = await asyncio.to_thread(self._start, "far", "near", self.proxy.port)
        for broker in (self.near, self.far):
            await asyncio.to_thread(_declare, broker)
        await _until(lambda: _link(self.near)["state"] == "up")

    def _start(self, own: str, other: str, port: int | None) -> Broker:
        folder = self._folder / own
        folder.mkdir()
        url = "" if port is None else f', url = "amqp://guest:guest@127.0.0.1:{port}"'
        config = folder / "slotmq.toml"
        config.write_text(SETTINGS.format(own=json.dumps(own), other=json.dumps(other), url=url))
        started = slotmq(folder, options=["--config", str(config)], package=self._package, name=own)
        return self.running.enter_context(started)

    async def measure(self, name: str, work: Awaitable[None]) -> Stretch:
        """Do something, and return what it took."""
        before = [_cpu_s(broker) for broker in (self.far, self.near)]
        begun_s = time.perf_counter()
        await work
        elapsed_s = time.perf_counter() - begun_s
        far, near = (_cpu_s(broker) - used for broker, used in zip((self.far, self.near), before, strict=True))
        return Stretch(name, elapsed_s, far, near)

    async def bind(self, keys: Sequence[str]) -> None:
        """Bind the queue, and wait until the publisher's broker knows of all of it."""
        await asyncio.to_thread(self._bind, keys)
        await _until(lambda: self._knows(len(keys)))

    async def reset(self, count: int) -> None:
        """Reset the link, and wait until a new one has carried everything again.

        Raises: AssertionError when a pattern was withdrawn meanwhile.
        """
        before = [_link(broker)["session"] for broker in (self.near, self.far)]
        self.proxy.cut()
        await _until(lambda: all(_link(one)["session"] not in (0, *before) for one in (self.near, self.far)))
        await _until(lambda: self._is_told_again(count))

    async def publish(self, keys: Sequence[str]) -> None:
        """Publish one message for each key, and wait until all are in the queue."""
        await asyncio.to_thread(self._publish, keys)
        await _until(lambda: self._ready() == len(keys))

    def _knows(self, count: int) -> bool:
        """Return whether the publisher's broker knows of so many patterns."""
        (broker,) = _facts(self.near)
        return any(row["exchange"] == EXCHANGE and row["count"] == count for row in broker["patterns"])

    def _is_told_again(self, count: int) -> bool:
        """Return whether a new link has carried everything.

        Raises: AssertionError when a pattern was lost meanwhile.
        """
        assert self._knows(count), "patterns were withdrawn while the link was down"
        announced = _link(self.far)["announced"]
        return bool(announced) and _link(self.near)["applied"] == announced

    def _bind(self, keys: Iterable[str]) -> None:
        """Bind the queue."""
        peer = PeerConnection(self.far.address, _CHANNEL)
        peer.call_all((wire.queue_bind(_CHANNEL, QUEUE, EXCHANGE, key) for key in keys), wire.QUEUE_BIND_OK)
        peer.close()

    def _publish(self, keys: Iterable[str]) -> None:
        """Publish one message for each key."""
        peer = PeerConnection(self.near.address, _CHANNEL)
        for some in _at_once(wire.publish(_CHANNEL, EXCHANGE, key, b"paid", persistent=True) for key in keys):
            peer.socket.sendall(some)
            peer.settle()
        peer.close()

    def _ready(self) -> int:
        """Return how many messages the queue has."""
        peer = PeerConnection(self.far.address, _CHANNEL)
        count = peer.declare_queue(QUEUE, durable=True, passive=True)
        peer.close()
        return count


def _at_once(frames: Iterator[bytes]) -> Iterator[bytes]:
    while some := b"".join(islice(frames, _PUBLISHED_AT_ONCE)):
        yield some


def _declare(broker: Broker) -> None:
    peer = PeerConnection(broker.address, _CHANNEL)
    peer.declare_exchange(EXCHANGE, durable=True)
    peer.declare_queue(QUEUE, durable=True)
    peer.close()


def _facts(broker: Broker) -> list[dict[str, Any]]:
    assert broker.folder is not None
    return list(ask(broker.folder, "overlay"))


def _link(broker: Broker) -> dict[str, Any]:
    (held,) = _facts(broker)
    return dict(held["links"][0])


def _cpu_s(broker: Broker) -> float:
    assert broker.processes is not None
    return broker.processes.usage().cpu_s


async def _until(done: Callable[[], bool]) -> None:
    """Wait until something has become true. Raises: TimeoutError."""
    async with asyncio.timeout(LIMIT_S):
        while not await asyncio.to_thread(done):  # noqa: ASYNC110 - another process does not report
            await asyncio.sleep(_LOOK_S)


async def run(folder: Path, package: Path, count: int, round_trip_s: float) -> list[Stretch]:
    """Return what each stretch took with so many bindings."""
    pair = Pair(folder, package)
    keys = patterns(count)
    matching = [key.replace("*", "shipped") for key in keys]
    with pair.running:
        await pair.start(round_trip_s)
        stretches = [
            await pair.measure("bound, and known at the other end", pair.bind(keys)),
            await pair.measure("sent again after a reset", pair.reset(count)),
            await pair.measure("one message for each, received", pair.publish(matching)),
        ]
        await pair.proxy.stop()
    return stretches


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bindings", type=int, nargs="+", default=[40_000, 100_000])
    parser.add_argument("--round-trip-ms", type=float, default=100.0)
    parser.add_argument("--interpreted", action="store_true", help="run the sources, not compiled modules")
    options = parser.parse_args()
    package = PROJECT if options.interpreted else compiled_package()
    print(f"{'bindings':>9}  {'':<34} {'s':>7} {'subscriber CPU s':>17} {'publisher CPU s':>16}")
    for count in options.bindings:
        with tempfile.TemporaryDirectory(prefix="slotmq-bench-") as folder:
            for stretch in asyncio.run(run(Path(folder), package, count, options.round_trip_ms / 1000)):
                print(
                    f"{count:>9,}  {stretch.name:<34} {stretch.elapsed_s:>7.2f} {stretch.subscriber_cpu_s:>17.2f} "
                    f"{stretch.publisher_cpu_s:>16.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
