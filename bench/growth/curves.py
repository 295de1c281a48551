"""Measures the cost per message over the number of queues, queued messages, consumers of a queue, and bindings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from random import Random

from bench import brokers
from bench.brokers import Broker
from bench.ground import (
    LEAD,
    PREFETCH,
    bind_all,
    consume_all,
    control,
    declare_bound,
    fill,
    shuffled,
    sink,
    source,
)
from bench.herd import Herd
from bench.meter import Meter
from bench.stage import Stage
from broker.perf.peer import Address, PeerConnection
from broker.perf.spool import PASS_DIGITS
from broker.perf.wire import CONSUME_CHANNEL

PANELS = ("queues", "backlog", "consumers", "bindings")
ROW = 16
KEYS = 10_000  # distinct keys of every curve, so that caches are equally full everywhere

_QUEUE = "growth"
_CROWD_PREFETCH = 100  # of each of many consumers
_CROWD_ACK_EVERY = 10
_FILL_LIMIT_S = 400.0
_HEAD = 400_000  # messages that a broker may have in memory; later ones are read from disk
_WARM_UP_S = 30.0
_SEED = 7


@dataclass(frozen=True, slots=True)
class Curve:
    """A measurement at several sizes. Shapes: `prepare(address, size)` sets up the load on a new broker."""

    panel: str
    title: str
    prepare: Callable[[Address, int], Herd]


@dataclass(slots=True)
class _Runner:
    """One size of a curve: its broker and its warmed-up load."""

    curve: Curve
    size: int
    broker: Broker
    herd: Herd
    costs: dict[int, float] = field(default_factory=dict)  # by round

    def measure(self, stage: Stage, number: int, smallest: _Runner) -> None:
        """Add the cost of one round, and its ratio to that of the smallest size in the same round.

        All sizes of a round are measured one after the other, so changes of the machine's speed affect both equally.
        """
        meter = Meter(self.broker)
        self.herd.run(stage.plan.settle_s)
        meter.start()
        moved = self.herd.run(stage.plan.seconds)
        messages = max(1.0, moved.messages)
        used = meter.stop(round(messages))
        self.costs[number] = used["cpu_us"]
        figures = {"per_s": messages / moved.seconds, "cpu_us": used["cpu_us"], "rss_bytes": used["rss_bytes"]}
        if smallest.costs.get(number):
            figures["times"] = used["cpu_us"] / smallest.costs[number]
        stage.add(self.curve.panel, figures, title=self.curve.title, size=self.size)


def measure(stage: Stage, panel: str) -> None:
    """Measure the curves of a panel: start a broker for every size, then measure all sizes in each round."""
    for curve in CURVES:
        if curve.panel == panel:
            with ExitStack() as running:
                _measure_curve(stage, curve, running)


def _measure_curve(stage: Stage, curve: Curve, running: ExitStack) -> None:
    runners: list[_Runner] = []
    for size in getattr(stage.plan, curve.panel):
        if stage.late():
            stage.fail(f"{curve.title} at {size:,}", "the time was used up")
            break
        with stage.guarded(f"{curve.title} at {size:,}"):
            broker = running.enter_context(brokers.slotmq(stage.new_folder(), package=stage.package))
            herd = curve.prepare(broker.address, size)
            running.callback(herd.close)
            backlog = min(size, _HEAD) if curve.panel == "backlog" else 0
            target = herd.published + max(3 * KEYS, backlog)
            herd.run(_WARM_UP_S, partial(_has_published, herd, target))
            runners.append(_Runner(curve, size, broker, herd))
    for number in range(stage.plan.rounds):  # the smallest size first: the ratios of a round relate to it
        for one in runners:
            with stage.guarded(f"{curve.title} at {one.size:,}"):
                one.measure(stage, number, runners[0])


def _has_published(herd: Herd, target: int) -> bool:
    return herd.published >= target


def _one_by_one(address: Address, count: int) -> Herd:
    """Set up queues that get one message each in turn: the worst case, because no queue receives a batch."""
    return _spread(address, count, shuffled(f"g.{number % count:05d}.{number:05d}" for number in range(KEYS)))


def _in_rows(address: Address, count: int) -> Herd:
    """Set up queues that get several messages in a row, as from publishers that stay with a queue for a while."""
    mixed = Random(_SEED).sample(range(KEYS), KEYS)
    return _spread(address, count, [f"g.{number % count:05d}.{number:05d}" for number in mixed for _ in range(ROW)])


def _spread(address: Address, count: int, keys: list[str]) -> Herd:
    peer = control(address)
    names = [f"growth-{place:05d}" for place in range(count)]
    declare_bound(peer, names, [f"g.{place:05d}.#" for place in range(count)])
    consume_all(peer, names)
    return Herd([source(address, keys)], [sink(peer)], lead=LEAD)


def _one_queue(address: Address, *, durable: bool = False) -> tuple[PeerConnection, list[str]]:
    """Return a connection that declared one queue for all messages, and the keys."""
    peer = control(address, durable=durable)
    declare_bound(peer, [_QUEUE], ["g.#"], durable=durable)
    return peer, shuffled(f"g.{number % 97:05d}.{number:05d}" for number in range(KEYS))


def _backlog(address: Address, count: int) -> Herd:
    """Measure one queue with a backlog of this many messages while a consumer takes messages from another."""
    peer, keys = _one_queue(address, durable=True)
    if count:
        fill(address, keys, count, _FILL_LIMIT_S, persistent=True)
    peer.consume(_QUEUE, "c", auto_ack=False, prefetch=PREFETCH)
    return Herd([source(address, keys, persistent=True)], [sink(peer)], lead=LEAD, paced=PREFETCH)


def _on_one_connection(address: Address, count: int) -> Herd:
    peer, keys = _one_queue(address)
    consume_all(peer, [_QUEUE] * count, _CROWD_PREFETCH)
    return Herd([source(address, keys)], [sink(peer, _CROWD_ACK_EVERY)], lead=LEAD)


def _on_many_connections(address: Address, count: int) -> Herd:
    control_peer, keys = _one_queue(address)
    control_peer.close()
    sinks = []
    for _ in range(count):
        peer = PeerConnection(address, CONSUME_CHANNEL)
        peer.consume(_QUEUE, "c", auto_ack=False, prefetch=_CROWD_PREFETCH)
        sinks.append(sink(peer, _CROWD_ACK_EVERY))
    return Herd([source(address, keys)], sinks, lead=LEAD)


def _bindings(address: Address, count: int, *, renewed: bool) -> Herd:
    """Set up wildcard bindings, one of which matches; the others share words with the keys, at the same positions."""
    peer, keys = _one_queue(address)
    declare_bound(peer, ["growth-other"], ["other.*"])
    if renewed:
        keys = [f"{key}.{PASS_DIGITS}" for key in keys]
    bind_all(peer, "growth-other", (_misses(number) for number in range(count - 2)))
    peer.consume(_QUEUE, "c", auto_ack=False, prefetch=PREFETCH)
    return Herd([source(address, keys, renewed=renewed)], [sink(peer)], lead=LEAD)


def _misses(number: int) -> str:
    """Return a pattern that matches no routing key of the curves."""
    if number % 3 == 0:
        return f"g.{number % 97:05d}.*.x{number}"
    return f"*.*.x{number}.#" if number % 3 == 1 else f"x{number}.#"


CURVES = (
    Curve("backlog", "as many published as consumed, persistent", _backlog),
    Curve("queues", "one message to each in turn", _one_by_one),
    Curve("queues", f"{ROW} messages in a row to each", _in_rows),
    Curve("consumers", "all on one channel", _on_one_connection),
    Curve("consumers", "a connection each", _on_many_connections),
    Curve("bindings", "keys that never come again", partial(_bindings, renewed=True)),
    Curve("bindings", f"{KEYS:,} keys", partial(_bindings, renewed=False)),
)
