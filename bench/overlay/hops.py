"""Measures latency over hops: of a message, and of a subscription's first message, covered by another or not.

Source: section 5.2 of the paper, Figure 5. The chain is a leaf for publishers, 1, 4 or 7 inner brokers, and a leaf.
"""

from __future__ import annotations

import select
import time
from contextlib import closing
from itertools import pairwise
from statistics import median

from bench.ground import EXCHANGE, consume_all, control, declare_bound, paced_source, sink
from bench.herd import BURST_S, Herd
from bench.light import LightClient
from bench.overlay.plan import Plan
from bench.overlay.tree import Logical, Tree
from bench.run import Figures
from bench.stage import Stage
from broker.perf import wire
from broker.perf.faults import Refusal, Stalled
from broker.perf.peer import Address, PeerConnection
from broker.perf.process_group import ProcessGroup, ProcessPipe

TOPICS = 16
STEADY_TOPICS = 8
STEADY_SUBSCRIBERS = 60
_QUEUE = "bench-start"
_LIMIT_S = 30.0
_LOAD_LIMIT_S = 600.0
_QUIET_S = 0.05
_EVERY_S = 0.25  # between two starts: a stream changes its vector at most once in 100 ms
_READ_BYTES = 65_536


def measure(stage: Stage) -> None:
    """Measure each number of hops. Raises: BrokerFailed, Fault, RunFailed, OSError."""
    for hops in stage.plan.hops:
        with chain(stage, hops) as tree:
            tree.start()
            pb, sb = tree.address("pb"), tree.address("sb")
            for address in (pb, sb):
                control(address, durable=True).close()
            with ProcessGroup({"load": steady_load}, pb, sb, stage.plan) as workers:
                workers.gather("running", 2 * _LIMIT_S)
                figures = _delivery(pb, sb, stage.plan) | _starts(sb, stage.plan)
                workers.send("leave")
                figures |= workers.gather("left", _LIMIT_S)["load"]
        stage.add("hops", figures, hops=hops)


def chain(stage: Stage, hops: int) -> Tree:
    """Return a chain with `hops` inner brokers, each broker in its own process."""
    names = ["pb", *(f"ib{number}" for number in range(1, hops + 1)), "sb"]
    processes = {name: (Logical(name, name, leaf=name in ("pb", "sb")),) for name in names}
    return Tree(stage, [EXCHANGE], processes, list(pairwise(names)))


def topics() -> list[str]:
    """Return the topics that are published steadily; the first half has steady subscribers."""
    return [f"topic.{number:02d}" for number in range(TOPICS)]


def steady_load(line: ProcessPipe, pb: Address, sb: Address, plan: Plan) -> None:
    """Publish all topics and consume half of them until told to leave, in a process of its own."""
    keys = topics()
    subscriber = control(sb, durable=True)
    queues = [f"steady-{number:02d}" for number in range(STEADY_SUBSCRIBERS)]
    declare_bound(subscriber, queues, [keys[number % STEADY_TOPICS] for number in range(STEADY_SUBSCRIBERS)])
    consume_all(subscriber, queues)
    source = paced_source(pb, keys, plan.topic_per_s * TOPICS)
    herd = Herd([source], [sink(subscriber)], burst_s=BURST_S)
    herd.reach(_LIMIT_S, lambda: herd.delivered > 0, "no message went through the chain")
    herd.run(plan.settle_s)
    line.report("running")
    moved = herd.run(_LOAD_LIMIT_S, lambda: bool(select.select([line], [], [], 0)[0]))
    herd.close()
    line.report("left", moved.rates)


def _delivery(pb: Address, sb: Address, plan: Plan) -> Figures:
    """Return the latency of messages that this process publishes at one end and consumes at the other."""
    with closing(LightClient(pb, EXCHANGE, sb)) as client:
        client.await_route()
        times = client.watch(plan.seconds)
    return {"delivery_ms": times["p50_ms"], "delivery_p99_ms": times["p99_ms"]}


def _starts(sb: Address, plan: Plan) -> Figures:
    """Return the median times from a subscription to its first message: covered by a steady one, and not covered."""
    keys = topics()
    local: list[float] = []
    far: list[float] = []
    with closing(Subscription(sb)) as subscription:
        for number in range(plan.starts):
            for times, first in ((local, 0), (far, STEADY_TOPICS)):
                begun = time.monotonic()
                times.append(subscription.start_s(keys[first + number % STEADY_TOPICS]) * 1000)
                time.sleep(max(0.0, begun + _EVERY_S - time.monotonic()))
    return {"local_ms": median(local), "global_ms": median(far)}


class Subscription:
    """A queue that has a consumer and is bound to one topic after the other."""

    def __init__(self, address: Address) -> None:
        """Connect, and consume a queue that has no binding. Raises: Refusal, OSError."""
        self._control = control(address, durable=True)
        self._control.declare_queue(_QUEUE, durable=False)
        self._consumer = PeerConnection(address, wire.CONSUME_CHANNEL)
        self._consumer.consume(_QUEUE, "start", auto_ack=True, prefetch=0)
        self._poller = select.poll()
        self._poller.register(self._consumer.socket, select.POLLIN)

    def start_s(self, key: str) -> float:
        """Bind, return the time until the first message, and unbind. Raises: Stalled, Refusal, OSError."""
        channel = self._control.channel
        begun = time.monotonic()
        self._control.socket.sendall(wire.queue_bind(channel, _QUEUE, EXCHANGE, key))
        if not self._poller.poll(_LIMIT_S * 1000):
            raise Stalled(f"no message came within {_LIMIT_S:.0f} s of a subscription")
        took_s = time.monotonic() - begun
        self._control.await_method(wire.QUEUE_BIND_OK)
        self._control.call(wire.queue_unbind(channel, _QUEUE, EXCHANGE, key), wire.QUEUE_UNBIND_OK)
        while self._poller.poll(_QUIET_S * 1000):
            if not self._consumer.socket.recv(_READ_BYTES):
                raise Refusal("the broker closed the consumer's connection")
        return took_s

    def close(self) -> None:
        self._consumer.close()
        self._control.close()
