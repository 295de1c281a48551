"""Measures brokers in turn, with many wildcard bindings, one of which matches one message in a hundred."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from math import inf
from random import Random
from statistics import median
from typing import Any

from bench import brokers
from bench.machine import step_ns
from bench.topics import load, workload
from bench.topics.stage import Stage
from broker.perf.peer import PeerConnection
from broker.routing.index import TopicIndex

NEW, RECURRING = "new keys", "10,000 recurring keys"
MATCHING_SHARE = 0.01
_RECURRING_KEYS = 10_000


@dataclass(slots=True)
class Side:
    """One broker and our connection to it."""

    name: str
    broker: brokers.Broker
    peer: PeerConnection
    bound: int = 0
    binds_per_s: float = inf


class Keys:
    """Generates routing keys without repetition, one in a hundred of which matches a binding."""

    def __init__(self, patterns: Sequence[str], count: int) -> None:
        self._random = Random(4)
        self._patterns = patterns
        index = TopicIndex()
        for text in patterns:
            index.add(index.parse(text), text)
        self._match = index.match
        length = len(workload.VOCABULARY)
        drawn = workload.keys(count, seed=6, shortest=length)
        self._strangers = [key for key in drawn if not index.match(key)]
        self._used: set[str] = set()

    def take(self, count: int) -> list[str]:
        """Return `count` new keys, or the remaining ones."""
        keys: list[str] = []
        matching = max(1, round(count * MATCHING_SHARE))
        while len(keys) < matching:
            key = workload.meeting_key(self._random.choice(self._patterns), self._random)
            if key not in self._used:
                self._used.add(key)
                keys.append(key)
        keys += [self._strangers.pop() for _ in range(min(count - matching, len(self._strangers)))]
        self._random.shuffle(keys)
        return keys

    def matching(self, keys: Sequence[str]) -> int:
        """Return how many of the keys match a binding."""
        return sum(1 for key in keys if self._match(key))


def measure(stage: Stage) -> dict[str, Any]:
    """Return rates and CPU time of every broker that can be started, at every number of bindings.

    SlotMQ is restarted for each number, because its caches would keep earlier keys. RabbitMQ caches no keys, and binds
    so slowly that it keeps its bindings and adds to them.
    """
    plan = stage.plan
    patterns = workload.narrow_patterns(max(plan.broker_sizes))
    runs: list[dict[str, Any]] = []
    products: dict[str, str] = {}
    with ExitStack() as stack:
        peers = _start_rabbitmq(stage, stack)
        ceiling = 0.0
        for size in plan.broker_sizes:
            with ExitStack() as inner:
                sides = [*_start_slotmq(stage, inner, size), *peers]
                runs += [_bind(stage, side, patterns[side.bound : size], size) for side in sides]
                sides = [side for side in sides if side.bound == size]
                products |= {side.name: side.broker.product() for side in sides}
                taken, ceiling = _publish(stage, sides, size, patterns[:size])
                runs += taken
    return {"runs": runs, "medians": medians(runs), "ceiling_per_s": ceiling, "products": products}


def _publish(
    stage: Stage, sides: Sequence[Side], size: int, patterns: Sequence[str]
) -> tuple[list[dict[str, Any]], float]:
    """Publish new and recurring keys to each broker in turn; return the runs, and the generator's own limit."""
    plan, rounds = stage.plan, stage.plan.broker_rounds
    keys = Keys(patterns, (rounds + 1) * plan.broker_keys + 2 * _RECURRING_KEYS)
    again = keys.take(_RECURRING_KEYS)
    repeated = again * max(1, plan.broker_keys * 2 // _RECURRING_KEYS)
    recurring = load.encode(repeated)
    for side in sides:  # warm-up: only recurring keys are sent three times
        load.publish(side.broker, side.peer, load.encode(again * 3), 10 * plan.broker_seconds)
    runs: list[dict[str, Any]] = []
    for _ in range(rounds):
        fresh = keys.take(plan.broker_keys)
        for what, texts, tape in ((NEW, fresh, load.encode(fresh)), (RECURRING, repeated, recurring)):
            runs += [_run(stage, side, size, what, keys.matching, texts, tape) for side in sides]
    return runs, load.ceiling(recurring)


def _bind(stage: Stage, side: Side, patterns: Sequence[str], size: int) -> dict[str, Any]:
    """Bind patterns, unless they would take too long at the rate of the last ones."""
    run: dict[str, Any] = {"broker": side.name, "bindings": size, "keys": "binding"}
    guess_s = len(patterns) / side.binds_per_s
    if guess_s > stage.plan.bind_bound_s:
        run["left_out"] = f"to bind {len(patterns):,} more would take about {guess_s:,.0f} s"
        stage.tell(f"broker: {side.name:22} {size:7,} bindings, left out: {run['left_out']}")
    else:
        side.binds_per_s = len(patterns) / load.bind_all(side.peer, patterns)
        side.bound = size
        run["bound_per_s"] = side.binds_per_s
        stage.tell(f"broker: {side.name:22} {size:7,} bindings, {side.binds_per_s:,.0f} bound per second")
    return run


def _run(
    stage: Stage, side: Side, size: int, what: str, matching: Any, texts: Sequence[str], tape: load.Tape
) -> dict[str, Any]:
    """Publish once, check that the right number of messages arrived, and return the figures."""
    probe = step_ns()
    sent = load.publish(side.broker, side.peer, tape, stage.plan.broker_seconds)
    wanted = matching(texts[: sent.messages])
    if sent.arrived != wanted:
        raise brokers.NotStarted(f"{side.name} delivered {sent.arrived} of {wanted} messages that match")
    rate, cpu_us = sent.messages / sent.seconds, sent.cpu_s / sent.messages * 1e6
    stage.tell(
        f"broker: {side.name:22} {size:7,} bindings, {what:22} {rate:10,.0f}/s {cpu_us:8.1f} CPU-us,"
        f" {sent.arrived:,} of {sent.messages:,} arrived"
    )
    figures = {"broker": side.name, "bindings": size, "keys": what, "per_s": rate, "cpu_us": cpu_us, "step_ns": probe}
    return figures | asdict(sent)


def medians(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the medians of all runs that published, by number of bindings, keys and broker."""
    groups: dict[tuple[int, str, str], list[dict[str, Any]]] = {}
    for run in runs:
        if "per_s" in run:
            groups.setdefault((run["bindings"], run["keys"], run["broker"]), []).append(run)
    return [
        {"bindings": bindings, "keys": keys, "broker": name}
        | {figure: median(run[figure] for run in group) for figure in ("per_s", "cpu_us")}
        for (bindings, keys, name), group in groups.items()
    ]


def _start_slotmq(stage: Stage, stack: ExitStack, size: int) -> list[Side]:
    """Start SlotMQ from every package."""
    sides = []
    for package in stage.packages:
        folder = stage.folder / f"{package.form}-{size}"
        broker = stack.enter_context(brokers.slotmq(folder, package=package.folder))
        sides.append(_side(stack, f"SlotMQ, {package.form}", broker))
    return sides


def _start_rabbitmq(stage: Stage, stack: ExitStack) -> list[Side]:
    """Start RabbitMQ if it is installed."""
    script = brokers.rabbitmq_script()
    if script is None:
        stage.tell("broker: rabbitmq-server is not installed: measuring without it")
        return []
    try:
        broker = stack.enter_context(brokers.rabbitmq(stage.folder, script))
    except brokers.NotStarted as error:
        stage.tell(f"broker: measuring without RabbitMQ: {error}")
        return []
    return [_side(stack, "RabbitMQ", broker)]


def _side(stack: ExitStack, name: str, broker: brokers.Broker) -> Side:
    side = Side(name, broker, load.open_peer(broker))
    stack.callback(side.peer.socket.close)
    return side
