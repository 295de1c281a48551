"""One publisher, one queue, one consumer, at full speed: S1 to S3, which differ in their guarantees."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from bench.brokers import Broker
from bench.companion import Companion
from bench.consumer import ConsumerPace, LoadConsumer
from bench.counters import Counters
from bench.meter import Figures, Meter
from bench.publisher import LoadPublisher, PublisherPace
from bench.scenario import CALL_BYTES, Limits, size_text
from bench.tape import BINDING_KEY, EXCHANGE, Tape, deliver_tape, publish_tape, routing_keys
from broker.perf import wire
from broker.perf.crew import Crew, CrewPipe
from broker.perf.peer import Address, PeerConnection
from broker.perf.wire import CONSUME_CHANNEL, CONSUMER_TAG, PUBLISH_CHANNEL

READY_LIMIT_S = 60.0  # to start two processes, encode, and warm up
AFTERGLOW_S = 0.1  # a broker may defer work until it is idle; that work belongs to the run
_TAPE_BYTES = 64 << 20  # large bodies have fewer keys
_FLIGHT_BYTES = 20 << 20  # large bodies have a smaller window
_LEAST_WINDOW = 4
_FRAME_BYTES = 131_072 - wire.FRAME_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class Flow:
    """A mode of publishing and consuming.

    Shapes: `confirms` bounds unconfirmed messages by a window, without it the publisher sends what the socket accepts;
    `acks` are manual acks, `multiple`, with a prefetch.
    """

    name: str
    body_bytes: int
    persistent: bool
    confirms: bool
    acks: bool
    stage: str = "flow"
    rounds: int = 99
    relayed: bool = True

    @property
    def title(self) -> str:
        """Return a title of one line for readers."""
        kind = "persistent, durable" if self.persistent else "transient"
        confirmed = ", confirms" if self.confirms else ""
        frames = ", several frames" if self.body_bytes > _FRAME_BYTES else ""
        return f"{kind}{confirmed}, {'manual ack' if self.acks else 'auto-ack'}, {size_text(self.body_bytes)}{frames}"

    @property
    def record_bytes(self) -> int:
        """Return how many bytes of a message must be on disk before its confirm."""
        return message_bytes(self.body_bytes)[0] if self.persistent else 0

    def paced(self, limits: Limits) -> Limits:
        """Return the limits with the window, prefetch and ack interval of this size of bodies."""
        window = min(limits.window, max(_LEAST_WINDOW, _FLIGHT_BYTES // self.body_bytes))
        return replace(
            limits,
            window=window,
            prefetch=min(limits.prefetch, window),
            ack_every=min(limits.ack_every, max(1, window // 10)),
        )

    def least_calls(self, limits: Limits) -> tuple[float, float]:
        """Return reads and writes per message when every call moves as much as possible.

        With a window, at most one window moves at a time: its messages, its acks, its confirm, its log records.
        """
        limits = self.paced(limits)
        came, went = message_bytes(self.body_bytes)
        if not self.confirms:
            return came / CALL_BYTES, went / CALL_BYTES
        reads = ceil(limits.window * came / CALL_BYTES) + self.acks
        writes = ceil(limits.window * went / CALL_BYTES) + 1 + self.persistent
        return reads / limits.window, writes / limits.window

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        """Run the scenario once. Raises: RunFailed, Fault, OSError."""
        order = Order(broker.address, broker.relay, self, self.paced(limits), f"bench-{self.name}")
        control = PeerConnection(broker.address, PUBLISH_CHANNEL)
        try:
            control.delete(order.queue, EXCHANGE)  # a failed run may have left it
            control.declare_exchange(EXCHANGE, durable=self.persistent)
            control.declare_queue(order.queue, durable=self.persistent)
            control.bind(order.queue, EXCHANGE, BINDING_KEY)
            with Companion(broker):
                figures = _drive(broker, order)
            control.delete(order.queue, EXCHANGE)
        finally:
            control.close()
        return figures


@dataclass(frozen=True, slots=True)
class Order:
    """The task of the generator's processes; it is passed whole to each of them."""

    address: Address
    relay: bool
    scenario: Flow
    limits: Limits
    queue: str


def message_bytes(body_bytes: int) -> tuple[int, int]:
    """Return the size of a message of the tape in bytes, when published and when delivered."""
    (key,) = routing_keys(1)
    body = bytes(body_bytes)
    came = wire.publish(PUBLISH_CHANNEL, EXCHANGE, key, body, persistent=True)
    went = wire.deliver(CONSUME_CHANNEL, CONSUMER_TAG, EXCHANGE, key, body, persistent=True)
    return len(came), len(went)


def _drive(broker: Broker, order: Order) -> Figures:
    counters, meter = Counters(), Meter(broker)
    with Crew({"publisher": publish, "consumer": consume}, order, counters) as crew:
        crew.gather("connected", READY_LIMIT_S)
        crew.tell("warm up")
        crew.gather("ready", READY_LIMIT_S, role="publisher")
        meter.start()
        crew.tell("go")
        reports = crew.gather("done", order.limits.stall_s + 10)
        time.sleep(AFTERGLOW_S)
        sent, got = reports["publisher"], reports["consumer"]
        messages = counters.total - sent["warm_up"]
        used = meter.stop(messages)
        crew.tell("leave")
        crew.gather("left", READY_LIMIT_S)
    seconds = max(sent["ended"], got["ended"]) - sent["begun"]
    if used and order.scenario.body_bytes > _FRAME_BYTES:
        used |= _held(broker, used, sent["most_ahead"] * order.scenario.body_bytes)
    return used | {
        "messages": messages,
        "warm_up": sent["warm_up"],
        "seconds": seconds,
        "per_s": messages / seconds,
        "publisher_cpu_us": sent["cpu_s"] / messages * 1e6,
        "consumer_cpu_us": got["cpu_s"] / counters.total * 1e6,
        "confirm_frames": sent["confirm_frames"],
        "walked": got["walked"],
        "blocked": sent["blocked"],
    }


def _held(broker: Broker, used: Figures, flight_bytes: int) -> Figures:
    """Return what the broker's memory grew by at its peak, beside the bodies that were on their way."""
    held_bytes = used["peak_rss_bytes"] - broker.idle_bytes
    return {"held_bytes": held_bytes, "flight_bytes": flight_bytes, "held_times": held_bytes / flight_bytes}


def publish(line: CrewPipe, order: Order, counters: Counters) -> None:
    """Run the publisher's process of a run."""
    scenario, limits = order.scenario, order.limits
    tape = tape_of(order)
    peer = PeerConnection(order.address, PUBLISH_CHANNEL)
    if scenario.confirms:
        peer.select_confirms()
    window, lead = (limits.window, 0) if scenario.confirms else (0, limits.lead)
    publisher = LoadPublisher(peer, tape, PublisherPace(window, lead, limits.stall_s), counters)
    line.tell("connected")
    line.await_word("warm up")
    publisher.warm_up(limits.warm_up_rounds * tape.messages, limits.warm_up_seconds)
    warm_up, warm_up_frames = publisher.sent, publisher.confirm_frames
    line.tell("ready")
    line.await_word("go")
    used = _cpu_s()
    begun, ended = publisher.run(limits.messages, limits.seconds)
    counters.total = publisher.sent
    figures = {
        "warm_up": warm_up,
        "begun": begun,
        "ended": ended,
        "cpu_s": _cpu_s() - used,
        "confirm_frames": publisher.confirm_frames - warm_up_frames,
        "blocked": publisher.blocked,
        "most_ahead": publisher.most_ahead,
    }
    _leave(line, peer, figures)


def consume(line: CrewPipe, order: Order, counters: Counters) -> None:
    """Run the consumer's process of a run."""
    scenario, limits = order.scenario, order.limits
    peer = PeerConnection(order.address, CONSUME_CHANNEL)
    prefetch = limits.prefetch if scenario.acks else 0
    peer.consume(order.queue, CONSUMER_TAG, auto_ack=not scenario.acks, prefetch=prefetch)
    ack_every = limits.ack_every if scenario.acks else 0
    demand = ConsumerPace(ack_every, scenario.body_bytes, limits.stall_s, tags=not order.relay)
    consumer = LoadConsumer(peer, demand, counters)
    line.tell("connected")
    used = _cpu_s()
    ended = consumer.run()
    _leave(line, peer, {"ended": ended, "cpu_s": _cpu_s() - used, "walked": consumer.walked})


def _leave(line: CrewPipe, peer: PeerConnection, figures: dict[str, Any]) -> None:
    """Report, and close the connection only after the bench has taken its last figure of the broker."""
    line.tell("done", figures)
    line.await_word("leave")
    peer.close()
    line.tell("left")


def tape_of(order: Order) -> Tape:
    """Return the messages of a run, with all its keys or as many as fit into memory."""
    scenario = order.scenario
    keys = min(order.limits.keys, max(2, _TAPE_BYTES // scenario.body_bytes))
    if order.relay:
        return deliver_tape(keys, scenario.body_bytes, persistent=scenario.persistent)
    return publish_tape(keys, scenario.body_bytes, persistent=scenario.persistent)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
