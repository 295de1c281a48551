"""Fairness: a light client beside floods and crowds, a silent consumer, and the share of each member of a crowd."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from bench import brokers
from bench.brokers import Broker
from bench.ground import EXCHANGE, WINDOW, control, declare_bound, fill, sink, source
from bench.growth.curves import KEYS
from bench.herd import Herd, Moved
from bench.light import LightClient
from bench.meter import Meter
from bench.stage import Stage
from broker.perf.peer import Address, PeerConnection
from broker.perf.process_group import ProcessGroup, ProcessPipe
from broker.perf.receiver import Receiver
from broker.perf.wire import CONSUME_CHANNEL

_READY_S = 120.0
_HEAD_START_S = 0.5
_PRESSURE_S = 120.0  # at most: it ends when the light client has measured enough
_SILENT_MESSAGES = 200_000
_SILENT_RECEIVE_BYTES = 65_536
_FULL_TRIES = 50
_FULL_SHARE = 0.98  # the silent one is full when this share of the messages reaches the reading consumers
_CROWD_WINDOW = 100
_BUSY, _SILENT = "growth-busy", "growth-silent"


@dataclass(frozen=True, slots=True)
class Pressure:
    """The load beside a light client.

    Shapes: `window` is the number of unconfirmed messages of each publisher, 0 for full speed; each of `publishers` has
    a consumer if `consumed`, all of them on one queue if `together`. With a `width`, each message is routed to that
    many queues without consumers; with `renewed`, each message has a new key.
    """

    title: str
    publishers: int = 1
    window: int = 0
    body_bytes: int = 16
    consumed: bool = True
    together: bool = False
    width: int = 0
    renewed: bool = False


def pressures(crowd: int, width: int) -> list[Pressure]:
    """Return all pressures."""
    small, few = "one publisher at full speed, 16 B", _CROWD_WINDOW
    wide = f"messages for {width:,} queues, one by one"
    return [
        Pressure("nobody", publishers=0),
        Pressure(small),
        Pressure(f"{small}, no consumer", consumed=False),
        Pressure(f"one publisher, at most {WINDOW:,} unconfirmed, 16 B", window=WINDOW),
        Pressure("one publisher at full speed, 1 KiB", body_bytes=1024),
        Pressure("one publisher at full speed, 128 KiB", body_bytes=131_072),
        Pressure(f"{crowd} publishers and {crowd} consumers, a queue for each two", publishers=crowd, window=few),
        Pressure(f"{crowd} publishers and {crowd} consumers of one queue", publishers=crowd, window=few, together=True),
        Pressure(f"{crowd} publishers at full speed, {crowd} consumers", publishers=crowd),
        Pressure(wide, window=1, consumed=False, width=width),
        Pressure(f"{wide}, each with a new key", window=1, consumed=False, width=width, renewed=True),
    ]


def measure(stage: Stage) -> None:
    """Measure the light client beside each pressure, and the cost of silent consumers for the others."""
    beside = {f"beside {one.title}": partial(_beside, one) for one in pressures(stage.plan.crowd, stage.plan.width)}
    works: dict[str, Callable[[Stage, Broker], None]] = beside | {"beside a consumer that reads nothing": _silent}

    def measured(work: Callable[[Stage, Broker], None], _number: int) -> None:
        with brokers.slotmq(stage.new_folder(), package=stage.package) as broker:
            work(stage, broker)

    stage.in_turn({name: partial(measured, work) for name, work in works.items()}, 1)


def _beside(pressure: Pressure, stage: Stage, broker: Broker) -> None:
    """Add the latency of a light client beside a pressure, and the shares of the pressure's members.

    Percentiles are taken from each of several short rounds: in a single long round, one stall of the machine of 160 ms
    would raise the 99th percentile to 110 ms.
    """
    plan, address = stage.plan, broker.address
    control(address).close()
    light = LightClient(address, EXCHANGE)  # connects before the others, which would delay every answer

    def watch() -> None:
        for _ in range(plan.rounds):
            stage.add("light", light.watch(plan.seconds * plan.share_factor / plan.rounds), title=pressure.title)

    try:
        if not pressure.publishers:
            watch()
            return
        with ProcessGroup({"pressure": press}, address, pressure) as workers:
            workers.gather("ready", _READY_S)
            workers.send("go")
            time.sleep(_HEAD_START_S)
            watch()
            workers.send("stop")
            stage.run.add("members", workers.gather("done", _READY_S)["pressure"], title=pressure.title)
    finally:
        light.close()


def press(line: ProcessPipe, address: Address, pressure: Pressure) -> None:
    """Run the pressure in its own process, until told to stop."""
    count = pressure.publishers
    queues = 1 if pressure.together else count
    peer = control(address)
    names = [f"{_BUSY}-{place:03d}" for place in range(pressure.width or queues)]
    declare_bound(peer, names, [f"g.{place % queues:03d}.*" for place in range(len(names))])
    keys = 1 if pressure.width and not pressure.renewed else max(1, KEYS // count)
    sources = [
        source(
            address,
            [f"g.{place % queues:03d}.{number:05d}" for number in range(keys)],
            window=pressure.window,
            body_bytes=pressure.body_bytes,
        )
        for place in range(count)
    ]
    sinks = [_sink(address, names[place % queues]) for place in range(count)] if pressure.consumed else []
    herd = Herd(sources, sinks)
    line.report("ready")
    line.await_command("go")
    poller = select.poll()
    poller.register(line, select.POLLIN)
    moved = herd.run(_PRESSURE_S, lambda: bool(poller.poll(0)))
    confirmed_per_s = sum(moved.confirmed_each) / moved.seconds
    line.report("done", {"confirmed_per_s": confirmed_per_s, **moved.rates, **_spread(moved)})
    herd.close()


def _sink(address: Address, queue: str) -> Receiver:
    peer = PeerConnection(address, CONSUME_CHANNEL)
    peer.consume(queue, "c", auto_ack=True, prefetch=0)
    return sink(peer, 0)


def _spread(moved: Moved) -> dict[str, float]:
    """Return the smallest share of one client, relative to the average, of published and of delivered messages."""
    sides = {"confirmed_least_share": moved.confirmed_each, "delivered_least_share": moved.got_each}
    return {name: min(each) / fmean(each) for name, each in sides.items() if len(each) > 1 and any(each)}


def _silent(stage: Stage, broker: Broker) -> None:
    """Add the ratios of the other clients' rate and cost with two silent consumers to those without, in each round."""
    address = broker.address
    peer = control(address)
    declare_bound(peer, [_BUSY, _SILENT], ["g.#", "s.#"])
    with ExitStack() as stack:
        stack.callback(peer.close)
        fill(address, ["s.x"], _SILENT_MESSAGES, _READY_S)
        keys = [f"g.{number:05d}" for number in range(KEYS)]
        herd = Herd([source(address, keys)], [_sink(address, _BUSY)])
        stack.callback(herd.close)
        herd.run(_READY_S, lambda: herd.published >= 2 * KEYS)
        for _ in range(stage.plan.rounds):
            without = _cost(herd, broker, stage)
            silent = [_silent_consumer(address, queue) for queue in (_SILENT, _BUSY)]
            _run_until_full(herd, stage)
            beside = _cost(herd, broker, stage)
            for one in silent:
                one.socket.close()  # it does not read, so it would not receive close-ok
            rate_ratio, cost_ratio = (now / before for now, before in zip(beside, without, strict=True))
            stage.add("silent", {"rate_ratio": rate_ratio, "cost_ratio": cost_ratio})


def _silent_consumer(address: Address, queue: str) -> PeerConnection:
    peer = PeerConnection(address, CONSUME_CHANNEL, receive_bytes=_SILENT_RECEIVE_BYTES)
    peer.consume(queue, "silent", auto_ack=True, prefetch=0)
    return peer


def _run_until_full(herd: Herd, stage: Stage) -> None:
    """Publish until the buffers of the silent consumer's connection are full."""
    for _ in range(_FULL_TRIES):
        moved = herd.run(stage.plan.settle_s)
        if sum(moved.got_each) >= sum(moved.sent_each) * _FULL_SHARE:
            return


def _cost(herd: Herd, broker: Broker, stage: Stage) -> tuple[float, float]:
    """Return the others' messages per second, and the broker's CPU microseconds for each."""
    meter = Meter(broker)
    herd.run(stage.plan.settle_s)
    meter.start()
    moved = herd.run(stage.plan.seconds)
    return moved.messages / moved.seconds, meter.stop(round(moved.messages))["cpu_us"]
