"""What a forwarded message costs a middle broker, beside S1 on a broker without an overlay, in one interleaved run.

S1 is transient, without confirms and acks, from one publisher to one consumer at full speed. The overlay's chain gets
the same load: a leaf for the publisher, one broker between, a leaf for the consumer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

from bench.brokers import Broker, slotmq
from bench.ground import EXCHANGE, control, declare_bound
from bench.herd import FULL_SPEED, Herd, Sink, Source
from bench.light import await_route
from bench.messages.flow import Flow
from bench.messages.rows import SIZES
from bench.messages.scenario import Limits
from bench.overlay.hops import chain
from bench.overlay.tree import Tree
from bench.run import Figures
from bench.stage import Stage
from broker.perf import wire
from broker.perf.peer import PeerConnection
from broker.perf.spool import Material, Spool
from broker.perf.wire import PUBLISH_CHANNEL

_KEYS = 10_000
_LEAD = 20_000
_DRAIN_LIMIT_S = 5.0
_SPOOL_MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Contestants:
    """The brokers of one form, compiled or interpreted: one alone, and a chain of three."""

    form: str
    alone: Broker
    tree: Tree


def measure(stage: Stage) -> None:
    """Measure each form and size in turn. Raises: NotStarted, Fault, RunFailed, OSError."""
    plan = stage.plan
    limits = Limits(seconds=plan.cost_seconds)
    with ExitStack() as running:
        contestants = list(_contestants(stage, running))

        def measured(one: Contestants, size: int) -> None:
            flow = Flow(f"S1-{size}", size, persistent=False, confirms=False, acks=False)
            alone = flow.measure(one.alone, limits)
            figures = {"s1_us": alone["cpu_us"], "s1_per_s": alone["per_s"]}
            figures |= _forwarded(one.tree, size, plan.cost_seconds)
            figures["times"] = figures["middle_us"] / figures["s1_us"]
            stage.add("cost", figures, form=one.form, size=size)

        works = {
            f"cost, {one.form}, {size} B": lambda _, one=one, size=size: measured(one, size)
            for size in SIZES
            for one in contestants
        }
        stage.in_turn(works, plan.rounds)


def _contestants(stage: Stage, running: ExitStack) -> Iterator[Contestants]:
    for form, package in stage.packages.items():
        here = replace(stage, packages={form: package})
        alone = running.enter_context(slotmq(here.new_folder(), package=package, name=f"{form} broker"))
        tree = running.enter_context(chain(here, 1))
        tree.start()
        for name in ("pb", "sb"):
            control(tree.address(name), durable=True).close()
        yield Contestants(form, alone, tree)


def _forwarded(tree: Tree, size: int, seconds: float) -> Figures:
    """Send messages through the chain at full speed, and return what each costs each broker."""
    keys = [f"bench.{number % 97:02d}.{number:08d}" for number in range(_KEYS)]
    queue = f"bench-cost-{size}"
    subscriber = control(tree.address("sb"), durable=True)
    declare_bound(subscriber, [queue], ["bench.*.#"])
    subscriber.consume(queue, "cost", auto_ack=True, prefetch=0)
    publisher = PeerConnection(tree.address("pb"), PUBLISH_CHANNEL)
    await_route(publisher, subscriber, wire.publish(PUBLISH_CHANNEL, EXCHANGE, keys[0], bytes(size), persistent=False))
    source = Source(publisher, Spool(Material(EXCHANGE, tuple(keys), size), 0, _SPOOL_MAX_BYTES), FULL_SPEED)
    herd = Herd([source], [Sink(subscriber, 0)], lead=_LEAD)
    try:
        herd.run(seconds / 2)
        before = tree.each_cpu_s()
        moved = herd.run(seconds)
        costs = tree.each_cpu_s(before, moved.messages / 1e6)
        source.stop()
        herd.run(_DRAIN_LIMIT_S, lambda: herd.delivered >= herd.published)  # what is in flight belongs to this run
    finally:
        herd.close()
    peer = PeerConnection(tree.address("sb"), PUBLISH_CHANNEL)
    peer.call(wire.queue_delete(peer.channel, queue), wire.QUEUE_DELETE_OK)
    peer.close()
    return {
        "middle_us": costs["ib1"],
        "publishing_us": costs["pb"],
        "subscribing_us": costs["sb"],
        "per_s": moved.messages / moved.seconds,
    }
