"""Measures one run: a publisher and a consumer process against one broker, and what the broker used meanwhile."""

from __future__ import annotations

import resource
import time
from dataclasses import asdict, dataclass
from typing import Any

from bench.brokers import Broker
from bench.consumer import Consumer, Demand
from bench.counters import Counters
from bench.crew import Crew, Line
from bench.peer import Address, Peer
from bench.process_tree import ProcessTree, Usage
from bench.publisher import Pace, Publisher
from bench.scenario import Limits, Scenario
from bench.tape import (
    BINDING_KEY,
    CONSUME_CHANNEL,
    CONSUMER_TAG,
    EXCHANGE,
    PUBLISH_CHANNEL,
    deliver_tape,
    publish_tape,
)

_READY_LIMIT_S = 60.0  # to start two processes, encode, and warm up
_AFTERGLOW_S = 0.1  # work that a broker puts off until it is idle belongs to the run


@dataclass(frozen=True, slots=True)
class Run:
    """What one run measured; `cpu_s` and memory are None for a broker whose processes are not ours to look at."""

    broker: str
    scenario: str
    messages: int
    warm_up: int
    seconds: float
    cpu_s: float | None
    rss_bytes: int | None
    peak_rss_bytes: int | None
    disk_bytes: int
    publisher_cpu_s: float
    consumer_cpu_s: float
    confirm_frames: int
    walked: int
    blocked: int

    @property
    def rate(self) -> float:
        """Return messages per second of wall time."""
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float | None:
        """Return broker CPU microseconds per message."""
        return None if self.cpu_s is None else self.cpu_s / self.messages * 1e6

    @property
    def per_cpu_s(self) -> float | None:
        """Return messages per broker CPU-second."""
        return self.messages / self.cpu_s if self.cpu_s else None

    def record(self) -> dict[str, Any]:
        """Return the run for a JSON file, with the figures derived from it."""
        derived = {"messages_per_s": self.rate, "cpu_us_per_message": self.cpu_us, "messages_per_cpu_s": self.per_cpu_s}
        return asdict(self) | derived


@dataclass(frozen=True, slots=True)
class Order:
    """What the generator's processes have to do; passed to them whole when they start."""

    address: Address
    relay: bool
    scenario: Scenario
    limits: Limits
    queue: str


def measure(broker: Broker, scenario: Scenario, limits: Limits) -> Run:
    """Run a scenario once and return its figures.

    Raises: RunFailed, Refusal, OSError when the broker cannot be reached.
    """
    order = Order(broker.address, broker.relay, scenario, limits, f"bench-{scenario.name}")
    control = Peer(broker.address, PUBLISH_CHANNEL)
    try:
        control.delete(order.queue, EXCHANGE)  # what a run that failed may have left
        control.declare_exchange(EXCHANGE, durable=scenario.persistent)
        control.declare_queue(order.queue, durable=scenario.persistent)
        control.bind(order.queue, EXCHANGE, BINDING_KEY)
        run = _drive(broker, order)
        control.delete(order.queue, EXCHANGE)
    finally:
        control.close()
    return run


def _drive(broker: Broker, order: Order) -> Run:
    counters = Counters()
    with Crew({"publisher": publish, "consumer": consume}, order, counters) as crew:
        crew.gather("connected", _READY_LIMIT_S)
        crew.tell("warm up")
        crew.gather("ready", _READY_LIMIT_S, role="publisher")
        before = _usage(broker.processes, reset=True)
        crew.tell("go")
        reports = crew.gather("done", order.limits.stall_s + 10)
        time.sleep(_AFTERGLOW_S)
        after = _usage(broker.processes)
        disk_bytes = broker.disk_bytes()
        crew.tell("leave")
        crew.gather("left", _READY_LIMIT_S)
    sent, got = reports["publisher"], reports["consumer"]
    messages = counters.total - sent["warm_up"]
    return Run(
        broker=broker.name,
        scenario=order.scenario.name,
        messages=messages,
        warm_up=sent["warm_up"],
        seconds=max(sent["ended"], got["ended"]) - sent["begun"],
        cpu_s=after.cpu_s - before.cpu_s if after and before else None,
        rss_bytes=after.rss_bytes if after else None,
        peak_rss_bytes=after.peak_rss_bytes if after else None,
        disk_bytes=disk_bytes,
        publisher_cpu_s=sent["cpu_s"],
        consumer_cpu_s=got["cpu_s"] * messages / counters.total,
        confirm_frames=sent["confirm_frames"],
        walked=got["walked"],
        blocked=sent["blocked"],
    )


def _usage(processes: ProcessTree | None, *, reset: bool = False) -> Usage | None:
    if not processes:
        return None
    if reset:
        processes.reset_peak()
    return processes.usage()


def publish(line: Line, order: Order, counters: Counters) -> None:
    """Be the publisher's process of a run."""
    scenario, limits = order.scenario, order.limits
    encode = deliver_tape if order.relay else publish_tape
    tape = encode(limits.keys, scenario.body_bytes, persistent=scenario.persistent)
    peer = Peer(order.address, PUBLISH_CHANNEL)
    if scenario.confirms:
        peer.select_confirms()
    window, lead = (limits.window, 0) if scenario.confirms else (0, limits.lead)
    publisher = Publisher(peer, tape, Pace(window, lead, limits.stall_s), counters)
    line.tell("connected")
    line.await_word("warm up")
    publisher.warm_up(limits.warm_up_rounds * limits.keys, limits.warm_up_seconds)
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
    }
    _leave(line, peer, figures)


def consume(line: Line, order: Order, counters: Counters) -> None:
    """Be the consumer's process of a run."""
    scenario, limits = order.scenario, order.limits
    peer = Peer(order.address, CONSUME_CHANNEL)
    prefetch = limits.prefetch if scenario.acks else 0
    peer.consume(order.queue, CONSUMER_TAG, auto_ack=not scenario.acks, prefetch=prefetch)
    ack_every = limits.ack_every if scenario.acks else 0
    demand = Demand(ack_every, scenario.body_bytes, limits.stall_s, tags=not order.relay)
    consumer = Consumer(peer, demand, counters)
    line.tell("connected")
    used = _cpu_s()
    ended = consumer.run()
    _leave(line, peer, {"ended": ended, "cpu_s": _cpu_s() - used, "walked": consumer.walked})


def _leave(line: Line, peer: Peer, figures: dict[str, Any]) -> None:
    """Report, and close the connection only when the bench has taken its last figure of the broker."""
    line.tell("done", figures)
    line.await_word("leave")
    peer.close()
    line.tell("left")


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
