"""Measures the cost of a forwarded message in a middle broker and, in turn, S1 on a broker without an overlay.

S1 has transient messages without confirms and acks, one publisher and one consumer, at full speed. The overlay is a
chain under the same load: a leaf for the publisher, one broker between, a leaf for the consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

from bench.brokers import Broker, slotmq
from bench.ground import EXCHANGE, control, declare_bound, sink, source
from bench.herd import Herd
from bench.light import await_route
from bench.messages.perf_load import KEYS
from bench.messages.rows import SIZES
from bench.meter import threads_s
from bench.overlay.hops import chain
from bench.overlay.tree import Tree
from bench.run import Figures
from bench.stage import Stage
from broker.perf import wire
from broker.perf.peer import Address, PeerConnection
from broker.perf.wire import PUBLISH_CHANNEL

_LEAD = 20_000
_DRAIN_LIMIT_S = 5.0


def measure(stage: Stage) -> None:
    """Measure each form and size in turn. Raises: BrokerFailed, Fault, RunFailed, OSError."""
    works = {}
    with ExitStack() as running:
        for form, package in stage.packages.items():
            alone = running.enter_context(slotmq(stage.new_folder(), package=package, name=f"{form} broker"))
            tree = running.enter_context(chain(replace(stage, packages={form: package}), 1))
            tree.start()
            for address in (tree.address("pb"), tree.address("sb"), alone.address):
                control(address, durable=True).close()
            for size in SIZES:
                works[f"cost, {form}, {size} B"] = partial(_measured, stage, form, size, alone, tree)
        stage.in_turn(works, stage.plan.rounds)


def _measured(stage: Stage, form: str, size: int, alone: Broker, tree: Tree, _round: int) -> None:
    """Record the cost of a message in a single broker, and in each broker of a chain."""
    seconds = stage.plan.cost_seconds
    own = _sent(alone.address, alone.address, size, seconds, lambda: {"alone": threads_s(alone.service.processes)})
    chained = _sent(tree.address("pb"), tree.address("sb"), size, seconds, tree.each_cpu_s)
    figures = {
        "s1_us": own["alone"],
        "s1_per_s": own["per_s"],
        "per_s": chained["per_s"],
        "middle_us": chained["ib1"],
        "publishing_us": chained["pb"],
        "subscribing_us": chained["sb"],
        "times": chained["ib1"] / own["alone"],
    }
    stage.add("cost", figures, form=form, size=size)


def _sent(
    publish_at: Address, consume_at: Address, size: int, seconds: float, used: Callable[[], Mapping[str, float]]
) -> Figures:
    """Send messages at full speed; return the rate, and the CPU microseconds per message of each process."""
    queue = f"bench-cost-{size}"
    subscriber = control(consume_at, durable=True)
    declare_bound(subscriber, [queue], ["bench.*.#"])
    subscriber.consume(queue, "cost", auto_ack=True, prefetch=0)
    publisher = PeerConnection(publish_at, PUBLISH_CHANNEL)
    await_route(publisher, subscriber, wire.publish(PUBLISH_CHANNEL, EXCHANGE, KEYS[0], bytes(size), persistent=False))
    publisher.close()
    sender = source(publish_at, KEYS, window=0, body_bytes=size, confirms=False)
    with closing(Herd([sender], [sink(subscriber, 0)], lead=_LEAD)) as herd:
        herd.run(seconds / 2)
        before = used()
        moved = herd.run(seconds)
        costs = {name: (after - before[name]) / moved.messages * 1e6 for name, after in used().items()}
        sender.stop()
        herd.run(_DRAIN_LIMIT_S, lambda: herd.delivered >= herd.published)  # messages in flight belong to this run
    peer = PeerConnection(consume_at, PUBLISH_CHANNEL)
    peer.call(wire.queue_delete(peer.channel, queue), wire.QUEUE_DELETE_OK)
    peer.close()
    return costs | {"per_s": moved.messages / moved.seconds}
