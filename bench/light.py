"""A light client, which sends few messages and measures their latency, and a second user with this load."""

from __future__ import annotations

import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

from bench.brokers import Broker
from broker.perf import wire
from broker.perf.faults import Fault, RunFailed, Stalled
from broker.perf.histogram import Histogram
from broker.perf.peer import Address, PeerConnection
from broker.perf.scanner import Scanner
from broker.perf.wire import CONSUME_CHANNEL, PUBLISH_CHANNEL

EVERY_S = 0.005
QUEUE = "bench-light"
_STALL_S = 20.0
_PROBE_S = 0.05
_QUIET_S = 0.5
_COMPANION_EVERY_S = 0.05
_EXCHANGE = "bench-light"  # of the companion


def await_route(publisher: PeerConnection, consumer: PeerConnection, message: bytes) -> None:
    """Publish a message repeatedly until one arrives at the consumer. Raises: Stalled, OSError."""
    poller = select.poll()
    poller.register(consumer.socket, select.POLLIN)
    stop_at = time.monotonic() + _STALL_S
    while not consumer.received:
        publisher.socket.sendall(message)
        if poller.poll(_PROBE_S * 1000):
            return
        if time.monotonic() > stop_at:
            raise Stalled(f"no message arrived within {_STALL_S:.0f} s")


class LightClient:
    """A publisher and a consumer of one queue, each with its own connection.

    Units: `spent` has the CPU nanoseconds of the broker between each message and its delivery.
    """

    def __init__(
        self, address: Address, exchange: str, consume_at: Address | None = None, *, every_s: float = EVERY_S
    ) -> None:
        """Connect, and consume at `consume_at` if the consumer uses another broker. Raises: Refusal, OSError."""
        self._every_s = every_s
        self.spent = Histogram()
        self._message = wire.publish(PUBLISH_CHANNEL, exchange, "light", bytes(16), persistent=False)
        self._publisher = PeerConnection(address, PUBLISH_CHANNEL)
        self._consumer = PeerConnection(consume_at or address, CONSUME_CHANNEL)
        self._consumer.declare_queue(QUEUE, durable=False)
        self._consumer.call(wire.queue_bind(CONSUME_CHANNEL, QUEUE, exchange, "light"), wire.QUEUE_BIND_OK)
        self._consumer.consume(QUEUE, "light", auto_ack=True, prefetch=0)

    def await_route(self) -> None:
        """Publish until messages arrive, and discard them. Raises: Refusal, Stalled, OSError."""
        await_route(self._publisher, self._consumer, self._message)
        poller = select.poll()
        poller.register(self._consumer.socket, select.POLLIN)
        while poller.poll(_QUIET_S * 1000):
            self._consumer.scan(lambda _, end: end, "light client")
        self._consumer.received.clear()

    def watch(self, seconds: float) -> dict[str, Any]:
        """Publish on a schedule, and return the percentiles of the latency from when each message was due.

        Raises: Stalled, Refusal, OSError.
        """
        times = self.run(int(seconds / self._every_s))
        return {
            "messages": times.count,
            "p50_ms": times.percentile(50) / 1e6,
            "p99_ms": times.percentile(99) / 1e6,
            "max_ms": times.percentile(100) / 1e6,
        }

    def close(self) -> None:
        self._publisher.close()
        self._consumer.close()

    def run(
        self,
        total: int,
        stopped: Callable[[], bool] = lambda: False,
        spent_ns: Callable[[], int] | None = None,
    ) -> Histogram:
        """Send each message when it is due, until `total` or until stopped, and return the latencies.

        `spent_ns` returns the broker's CPU time so far; without it, nothing is recorded in `spent`. Messages of one
        publisher arrive in order, so the number of a delivery determines when it was due.

        Raises: Stalled when a message does not arrive; Refusal, OSError.
        """
        times, scanner = Histogram(), Scanner()
        begun_ns: deque[int] = deque()
        poller = select.poll()
        poller.register(self._consumer.socket, select.POLLIN)
        sent = counted = 0
        begun = moved_at = time.monotonic()
        while counted < total:
            now = time.monotonic()
            if stopped():
                total = sent
                if counted >= total:
                    break
            if sent < total and now >= begun + sent * self._every_s:
                if spent_ns is not None:
                    begun_ns.append(spent_ns())
                self._publisher.socket.sendall(self._message)
                sent += 1
                continue
            if now > moved_at + _STALL_S:
                raise Stalled(f"the light client's message was not delivered within {_STALL_S:.0f} s")
            wait_s = begun + sent * self._every_s - now if sent < total else _STALL_S
            if not poller.poll(max(0.0, wait_s) * 1000):
                continue
            self._consumer.scan(scanner.scan, "light client")
            moved_at = time.monotonic()
            now_ns = spent_ns() if spent_ns is not None else 0
            while counted < scanner.deliveries:
                if begun_ns:
                    self.spent.record(now_ns - begun_ns.popleft())
                times.record(int((moved_at - begun - counted * self._every_s) * 1e9))
                counted += 1
        return times


@contextmanager
def companion(broker: Broker) -> Iterator[Future[int] | None]:
    """Publish and consume a few messages a second as a second user; provide the future number of deliveries.

    Provide None for a broker without a second user. Invariant: no other thread scans a connection meanwhile.

    Raises: RunFailed at the end, when a message was lost or the broker refused.
    """
    if not broker.other:
        yield None
        return
    connected, stopped = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as aside:
        delivered = aside.submit(_accompany, broker.other, connected, stopped)
        connected.wait()
        try:
            yield delivered
        finally:
            stopped.set()
    try:
        delivered.result()
    except (Fault, OSError) as error:
        raise RunFailed(f"the second user: {error}") from None


def _accompany(address: Address, connected: threading.Event, stopped: threading.Event) -> int:
    """Publish and consume until stopped, and return the number of messages. Raises: Fault, OSError."""
    try:
        control = PeerConnection(address, 1)
        control.delete(QUEUE, _EXCHANGE)  # left by an earlier run; its consumer ended with its connection
        control.declare_exchange(_EXCHANGE, durable=False)
        control.close()
        client = LightClient(address, _EXCHANGE, every_s=_COMPANION_EVERY_S)
    finally:
        connected.set()
    with closing(client):
        return client.run(sys.maxsize, stopped.is_set).count
