"""One publisher, one queue, one consumer, at full speed: S1 to S3, which differ in their guarantees."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import ceil
from multiprocessing.sharedctypes import RawArray
from random import Random
from typing import TYPE_CHECKING, Any

from bench.brokers import Broker
from bench.herd import FULL_SPEED, Herd, Sink, Source
from bench.messages.companion import Companion
from bench.messages.scenario import BINDING_KEY, CALL_BYTES, EXCHANGE, Limits, message_bytes, size_text
from bench.meter import Meter
from bench.run import Figures
from broker.perf import wire
from broker.perf.crew import Crew, CrewPipe
from broker.perf.faults import BrokenStream, Stalled
from broker.perf.peer import Address, PeerConnection
from broker.perf.spool import CHUNK_BYTES, Material, Spool
from broker.perf.wire import CONSUME_CHANNEL, CONSUMER_TAG, PUBLISH_CHANNEL

if TYPE_CHECKING:
    from ctypes import Array, c_longlong

READY_LIMIT_S = 60.0  # to start two processes, encode, and warm up
AFTERGLOW_S = 0.1  # a broker may defer work until it is idle; that work belongs to the run
_SPOOL_BYTES = 64 << 20  # large bodies have fewer keys
_FLIGHT_BYTES = 20 << 20  # large bodies have a smaller window
_LEAST_WINDOW = 4
_FRAME_BYTES = 131_072 - wire.FRAME_OVERHEAD_BYTES
_LEAD_PAUSE_S = 0.001  # no frame reports the consumer's progress to the publisher
_SEED = 20_240_229
_DELIVERED, _TOTAL = range(2)
_UNKNOWN = -1


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
        ack_every = min(limits.ack_every, max(1, window // 10))
        return replace(limits, window=window, prefetch=min(limits.prefetch, window), ack_every=ack_every)

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
    flow: Flow
    limits: Limits
    queue: str

    def spool(self) -> Spool:
        """Return the messages of a run, with all its keys or as many as fit into memory."""
        flow = self.flow
        keys = tuple(routing_keys(min(self.limits.keys, max(2, _SPOOL_BYTES // flow.body_bytes))))
        material = Material(EXCHANGE, keys, flow.body_bytes, persistent=flow.persistent, relayed=self.relay)
        return Spool(material, 0, _SPOOL_BYTES)


def routing_keys(count: int) -> list[str]:
    """Return `count` distinct routing keys of one length, in an order that no cache can predict."""
    width = len(str(count - 1))
    keys = [f"bench.{number % 97:02d}.{number:0{width}d}" for number in range(count)]
    Random(_SEED).shuffle(keys)
    return keys


def _drive(broker: Broker, order: Order) -> Figures:
    progress = RawArray("q", (0, _UNKNOWN))
    meter = Meter(broker)
    with Crew({"publisher": publish, "consumer": consume}, order, progress) as crew:
        crew.gather("connected", READY_LIMIT_S)
        crew.tell("warm up")
        crew.gather("ready", READY_LIMIT_S, role="publisher")
        meter.start()
        crew.tell("go")
        reports = crew.gather("done", order.limits.stall_s + 10)
        time.sleep(AFTERGLOW_S)
        sent, got = reports["publisher"], reports["consumer"]
        messages = progress[_TOTAL] - sent["warm_up"]
        used = meter.stop(messages)
        crew.tell("leave")
        crew.gather("left", READY_LIMIT_S)
    seconds = max(sent["ended"], got["ended"]) - sent["begun"]
    if used and order.flow.body_bytes > _FRAME_BYTES:
        held_bytes, flight_bytes = used["peak_rss_bytes"] - broker.idle_bytes, sent["ahead"] * order.flow.body_bytes
        used |= {"held_bytes": held_bytes, "flight_bytes": flight_bytes, "held_times": held_bytes / flight_bytes}
    return used | {
        "messages": messages,
        "warm_up": sent["warm_up"],
        "seconds": seconds,
        "per_s": messages / seconds,
        "confirm_frames": sent["confirm_frames"],
    }


def publish(line: CrewPipe, order: Order, progress: Array[c_longlong]) -> None:
    """Run the publisher's process of a run."""
    limits, confirms = order.limits, order.flow.confirms
    peer = PeerConnection(order.address, PUBLISH_CHANNEL)
    if confirms:
        peer.select_confirms()
    spool = order.spool()
    source = Source(peer, spool, limits.window if confirms else FULL_SPEED, chunk_bytes=CHUNK_BYTES)
    herd = Herd([source], [], lead=FULL_SPEED if confirms else limits.lead, idle_s=_LEAD_PAUSE_S)
    most_ahead = 0

    def run(messages: int, seconds: float) -> tuple[float, float]:
        """Publish until the count or the time is reached and all is confirmed; return the begin and the end."""
        source.limit = source.sent + messages
        begun = time.monotonic()

        def over() -> bool:
            nonlocal most_ahead
            herd.delivered = progress[_DELIVERED]
            settled = source.scanner.confirms.count if confirms else source.sent
            most_ahead = max(most_ahead, source.sent - min(settled, herd.delivered))
            if time.monotonic() - begun > seconds:
                source.stop()
            return source.sent >= source.limit and not source.pending and settled >= source.sent

        herd.run(limits.stall_s, over)
        if not over():
            raise Stalled(f"publisher: {source.sent} sent, {source.scanner.confirms.count} confirmed")
        return begun, time.monotonic()

    line.tell("connected")
    line.await_word("warm up")
    run(limits.warm_up_rounds * (spool.length // spool.stride), limits.warm_up_seconds)
    _await_delivered(source.sent, progress, limits.stall_s)
    warm_up, frames, most_ahead = source.sent, source.scanner.confirms.frames, 0
    line.tell("ready")
    line.await_word("go")
    begun, ended = run(limits.messages, limits.seconds)
    progress[_TOTAL] = source.sent
    frames = source.scanner.confirms.frames - frames
    figures = {"warm_up": warm_up, "begun": begun, "ended": ended, "confirm_frames": frames, "ahead": most_ahead}
    _leave(line, peer, figures)


def _await_delivered(sent: int, progress: Array[c_longlong], limit_s: float) -> None:
    """Wait until the consumer has all messages. Raises: Stalled."""
    stall_at = time.monotonic() + limit_s
    while progress[_DELIVERED] < sent:
        if time.monotonic() > stall_at:
            raise Stalled(f"warm-up: {progress[_DELIVERED]} of {sent} delivered")
        time.sleep(_LEAD_PAUSE_S)


def consume(line: CrewPipe, order: Order, progress: Array[c_longlong]) -> None:
    """Run the consumer's process of a run."""
    flow, limits = order.flow, order.limits
    peer = PeerConnection(order.address, CONSUME_CHANNEL)
    peer.consume(order.queue, CONSUMER_TAG, auto_ack=not flow.acks, prefetch=limits.prefetch if flow.acks else 0)
    sink = Sink(peer, limits.ack_every if flow.acks else 0)
    herd = Herd([], [sink])
    line.tell("connected")

    def over() -> bool:
        progress[_DELIVERED] = sink.scanner.deliveries
        return 0 <= progress[_TOTAL] <= sink.scanner.deliveries

    herd.run(READY_LIMIT_S + limits.stall_s, over)
    ended = time.monotonic()
    if not over():
        raise Stalled(f"consumer: {sink.scanner.deliveries} of {progress[_TOTAL]} delivered")
    _settle(sink, order, limits.stall_s)
    _leave(line, peer, {"ended": ended})


def _settle(sink: Sink, order: Order, limit_s: float) -> None:
    """Ack the remaining deliveries, wait until the broker has read the acks, and check the counts.

    Raises: BrokenStream.
    """
    scanner, peer = sink.scanner, sink.peer
    peer.socket.settimeout(limit_s)
    if order.flow.acks:
        peer.socket.sendall(wire.basic_ack(peer.channel, 0, multiple=True))
    peer.settle()
    if not order.relay and scanner.last_tag != scanner.deliveries:
        raise BrokenStream(f"{scanner.deliveries} deliveries counted, the last one's tag is {scanner.last_tag}")
    if scanner.body_bytes != scanner.deliveries * order.flow.body_bytes:
        raise BrokenStream(f"{scanner.body_bytes} body bytes in {scanner.deliveries} deliveries")


def _leave(line: CrewPipe, peer: PeerConnection, figures: dict[str, Any]) -> None:
    """Report, and close the connection only after the bench has taken its last figure of the broker."""
    line.tell("done", figures)
    line.await_word("leave")
    peer.close()
    line.tell("left")
