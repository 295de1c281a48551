"""Persistent messages without a consumer: publish, memory, a restart, a crash, and the drain (S7)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import ceil

from bench.brokers import Broker
from bench.companion import Companion
from bench.consumer import ConsumerPace, LoadConsumer
from bench.counters import Counters
from bench.meter import Figures, Meter
from bench.publisher import LoadPublisher, PublisherPace
from bench.scenario import CALL_BYTES, Limits
from bench.scenarios.flow import AFTERGLOW_S, READY_LIMIT_S, message_bytes
from bench.tape import BINDING_KEY, EXCHANGE, publish_tape
from broker.perf.crew import Crew, CrewPipe, RunFailed
from broker.perf.peer import Address, PeerConnection
from broker.perf.wire import CONSUME_CHANNEL, CONSUMER_TAG, PUBLISH_CHANNEL

_QUEUE = "bench-backlog"
_BODY_BYTES = 100
_SETTLE_S = 2.0
_DRAIN_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Order:
    """The task of the generator's process."""

    address: Address
    limits: Limits


@dataclass(frozen=True, slots=True)
class Backlog:
    """Queues up messages, then measures the broker's memory, restarts and drain."""

    name: str = "S7"
    title: str = "persistent, durable, 100 B, no consumer: publish, memory, restart, drain"
    stage: str = "backlog"
    rounds: int = 1
    relayed: bool = False

    @property
    def record_bytes(self) -> int:
        """Return how many bytes of a message must be on disk before its confirm."""
        return message_bytes(_BODY_BYTES)[0]

    def least_calls(self, limits: Limits) -> tuple[float, float]:
        """Return reads and writes per message published: a window is read, logged and confirmed at once."""
        window = limits.window
        calls = ceil(window * message_bytes(_BODY_BYTES)[0] / CALL_BYTES)
        return calls / window, (calls + 1) / window

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        """Run the scenario once. Raises: RunFailed, Fault, OSError, NotStarted."""
        order = Order(broker.address, limits)
        _declare(broker)
        with Companion(broker):
            figures = _publish(broker, order)
        stock = int(figures["messages"])
        if broker.service:
            figures["restart_s"] = _restart(broker, stock, killed=False)
            figures["crash_s"] = _restart(broker, stock, killed=True)
        with Companion(broker):
            figures |= _drain(broker, order, stock)
        control = PeerConnection(broker.address, PUBLISH_CHANNEL)
        control.delete(_QUEUE, EXCHANGE)
        control.close()
        return figures


def _declare(broker: Broker) -> None:
    control = PeerConnection(broker.address, PUBLISH_CHANNEL)
    try:
        control.delete(_QUEUE, EXCHANGE)
        control.declare_exchange(EXCHANGE, durable=True)
        control.declare_queue(_QUEUE, durable=True)
        control.bind(_QUEUE, EXCHANGE, BINDING_KEY)
    finally:
        control.close()


def _publish(broker: Broker, order: Order) -> Figures:
    """Publish the stock, or as much of it as the time allows."""
    meter, memory = Meter(broker), Meter(broker)
    with Crew({"publisher": publish}, order, Counters()) as crew:
        crew.gather("ready", READY_LIMIT_S)
        meter.start()
        memory.start()
        crew.tell("go")
        report = crew.gather("done", order.limits.stock_seconds + READY_LIMIT_S)["publisher"]
        time.sleep(AFTERGLOW_S)
        used = meter.stop(report["messages"])
        time.sleep(_SETTLE_S)
        used |= {name: size for name, size in memory.stop(1).items() if name.endswith("_bytes")}
    return used | report | {"per_s": report["messages"] / report["seconds"]}


def publish(line: CrewPipe, order: Order, counters: Counters) -> None:
    """Run the publisher's process."""
    limits = order.limits
    tape = publish_tape(limits.keys, _BODY_BYTES, persistent=True)
    peer = PeerConnection(order.address, PUBLISH_CHANNEL)
    peer.select_confirms()
    publisher = LoadPublisher(
        peer, tape, PublisherPace(limits.window, 0, limits.stock_seconds + READY_LIMIT_S), counters
    )
    line.tell("ready")
    line.await_word("go")
    begun, ended = publisher.run(limits.stock, limits.stock_seconds)
    figures = {"messages": publisher.sent, "seconds": ended - begun, "confirm_frames": publisher.confirm_frames}
    peer.close()
    line.tell("done", figures)


def _restart(broker: Broker, stock: int, *, killed: bool) -> float:
    """Restart the broker and return the seconds until it accepts a client and reports that all messages are there.

    Raises: RunFailed when messages are missing; NotStarted.
    """
    seconds = broker.restart(killed=killed)
    begun = time.monotonic()
    control = PeerConnection(broker.address, PUBLISH_CHANNEL)
    ready = control.declare_queue(_QUEUE, durable=True)
    control.close()
    if ready != stock:
        raise RunFailed(f"{ready} of {stock} messages after a {'crash' if killed else 'restart'}")
    return seconds + time.monotonic() - begun


def _drain(broker: Broker, order: Order, stock: int) -> Figures:
    """Consume everything, auto-ack, and return the cost of a message."""
    counters, meter = Counters(), Meter(broker)
    counters.total = stock
    with Crew({"consumer": consume}, order, counters) as crew:
        crew.gather("ready", READY_LIMIT_S)
        meter.start()
        crew.tell("go")
        report = crew.gather("done", _DRAIN_LIMIT_S)["consumer"]
        time.sleep(AFTERGLOW_S)
        used = meter.stop(stock)
    figures = {"drain_per_s": stock / report["seconds"]}
    return figures | ({"drain_cpu_us": used["cpu_us"]} if used else {})


def consume(line: CrewPipe, order: Order, counters: Counters) -> None:
    """Run the consumer's process."""
    peer = PeerConnection(order.address, CONSUME_CHANNEL)
    line.tell("ready")
    line.await_word("go")
    begun = time.monotonic()
    peer.consume(_QUEUE, CONSUMER_TAG, auto_ack=True, prefetch=0)
    ended = LoadConsumer(peer, ConsumerPace(0, _BODY_BYTES, _DRAIN_LIMIT_S), counters).run()
    peer.close()
    line.tell("done", {"seconds": ended - begun})
