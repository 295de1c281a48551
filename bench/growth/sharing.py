"""Fairness: a light client beside floods and crowds, a silent consumer, and the share of each member of a crowd."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

from bench import brokers
from bench.brokers import Broker, NotStarted
from bench.growth.ground import EXCHANGE, WINDOW, control, declare_bound, source
from bench.growth.herd import FULL_SPEED, Herd, Moved, Sink
from bench.growth.light import LightClient
from bench.growth.plan import KEYS, Plan
from bench.growth.race import Track
from broker.perf.crew import Crew, CrewPipe, RunFailed
from broker.perf.faults import Fault
from broker.perf.peer import Address, PeerConnection
from broker.perf.wire import CONSUME_CHANNEL

_READY_S = 120.0
_HEAD_START_S = 0.5
_PRESSURE_S = 120.0  # at most: it ends when the light client has measured enough
_SILENT_MESSAGES = 200_000
_SILENT_RECEIVE_BYTES = 65_536
_FULL_LOOKS = 50
_FULL_SHARE = 0.98  # of the published messages reach the reading consumers: the silent one accepts no more
_CROWD_WINDOW = 100
_CROWD_BUFFER_BYTES = 1 << 18
_BUSY, _SILENT = "growth-busy", "growth-silent"


@dataclass(frozen=True, slots=True)
class Pressure:
    """The load beside a light client.

    Shapes: `window` is the number of unconfirmed messages of each publisher; each of `publishers` has a consumer if it
    is `consumed`, all of them on one queue if they are `together`. With a `width`, each message enters so many queues,
    which nobody consumes; each has a new key if they are `renewed`.
    """

    name: str
    title: str
    publishers: int = 1
    window: int = FULL_SPEED
    body_bytes: int = 16
    consumed: bool = True
    together: bool = False
    width: int = 0
    renewed: bool = False


def pressures(crowd: int, width: int) -> list[Pressure]:
    """Return all pressures."""
    small = "one publisher at full speed, 16 B"
    return [
        Pressure("nobody", "nobody", publishers=0),
        Pressure("flood", small),
        Pressure("flood, not consumed", f"{small}, no consumer", consumed=False),
        Pressure("flood, window", f"one publisher, at most {WINDOW:,} unconfirmed, 16 B", window=WINDOW),
        Pressure("flood, 1 KiB", "one publisher at full speed, 1 KiB", body_bytes=1024),
        Pressure("flood, 128 KiB", "one publisher at full speed, 128 KiB", body_bytes=131_072),
        Pressure(
            "crowd, own queues", f"{crowd} publishers and {crowd} consumers, a queue for each two", publishers=crowd,
            window=_CROWD_WINDOW,
        ),
        Pressure(
            "crowd, one queue", f"{crowd} publishers and {crowd} consumers of one queue", publishers=crowd,
            window=_CROWD_WINDOW, together=True,
        ),
        Pressure("crowd, full speed", f"{crowd} publishers at full speed, {crowd} consumers", publishers=crowd),
        Pressure("wide", f"messages for {width:,} queues, one by one", window=1, consumed=False, width=width),
        Pressure(
            "wide, new keys", f"messages for {width:,} queues, one by one, each with a new key", window=1,
            consumed=False, width=width, renewed=True,
        ),
    ]  # fmt: skip


def measure(track: Track) -> dict[str, Any]:
    """Return the findings by name."""
    found: dict[str, Any] = {"light": [], "silent": None}
    for pressure in pressures(track.plan.crowd, track.plan.width):
        if track.late():
            track.fail(f"beside {pressure.name}: the time was used up")
            return found
        try:
            with _broker(track) as broker:
                row = _beside(broker.address, pressure, track.plan)
        except (Fault, OSError, NotStarted, RunFailed) as error:
            track.fail(f"beside {pressure.name}: {error}")
            continue
        found["light"].append(row)
        track.tell(
            f"light client beside {pressure.name:20} p50 {row['p50_ms']:8.2f} ms  p99 {row['p99_ms']:8.2f} ms"
            f"  longest {row['max_ms']:8.2f} ms"
        )
    try:
        with _broker(track) as broker:
            found["silent"] = _silent(broker, track)
    except (Fault, OSError, NotStarted) as error:
        track.fail(f"beside a consumer that reads nothing: {error}")
    return found


@contextmanager
def _broker(track: Track) -> Iterator[Broker]:
    with (
        TemporaryDirectory(prefix="slotmq-growth-", dir=track.folder) as folder,
        brokers.slotmq(Path(folder), package=track.package) as broker,
    ):
        yield broker


def _beside(address: Address, pressure: Pressure, plan: Plan) -> dict[str, Any]:
    """Return the latency of a light client beside a pressure, and the shares of the pressure's members."""
    control(address).close()
    row: dict[str, Any] = {"name": pressure.name, "title": pressure.title}
    light = LightClient(address, EXCHANGE)  # connects before the others: beside them it would wait for every answer
    try:
        if not pressure.publishers:
            return row | _watched(light, plan)
        with Crew({"pressure": press}, address, pressure) as crew:
            crew.gather("ready", _READY_S)
            crew.tell("go")
            time.sleep(_HEAD_START_S)
            row |= _watched(light, plan)
            crew.tell("stop")
            return row | crew.gather("done", _READY_S)["pressure"]
    finally:
        light.close()


def _watched(light: LightClient, plan: Plan) -> dict[str, Any]:
    """Return the light client's latencies: the medians of the rounds' percentiles, and the longest of all.

    Where the machine stands still once, for 160 ms, one message in a hundred of a single long round waits for 110 ms.
    """
    rounds = [light.watch(plan.seconds * plan.share_factor / plan.rounds) for _ in range(plan.rounds)]
    return {
        "messages": sum(one["messages"] for one in rounds),
        "p50_ms": median(one["p50_ms"] for one in rounds),
        "p99_ms": median(one["p99_ms"] for one in rounds),
        "max_ms": max(one["max_ms"] for one in rounds),
    }


def press(line: CrewPipe, address: Address, pressure: Pressure) -> None:
    """Run the process of the pressure."""
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
    line.tell("ready")
    line.await_word("go")
    told = select.poll()
    told.register(line, select.POLLIN)
    moved = herd.run(_PRESSURE_S, lambda: bool(told.poll(0)))
    figures = {
        "confirmed_per_s": sum(moved.confirmed_each) / moved.seconds,
        "delivered_per_s": sum(moved.got_each) / moved.seconds,
        **_spread(moved),
    }
    line.tell("done", figures)
    herd.close()


def _sink(address: Address, queue: str) -> Sink:
    peer = PeerConnection(address, CONSUME_CHANNEL)
    peer.consume(queue, "c", auto_ack=True, prefetch=0)
    return Sink(peer, 0, buffer_bytes=_CROWD_BUFFER_BYTES)


def _spread(moved: Moved) -> dict[str, float]:
    """Return the smallest share of a member, relative to the average."""
    sides = {"confirmed_least_share": moved.confirmed_each, "delivered_least_share": moved.got_each}
    return {name: min(each) / fmean(each) for name, each in sides.items() if len(each) > 1 and any(each)}


def _silent(broker: Broker, track: Track) -> dict[str, Any]:
    """Return the others' rate and cost with a silent consumer, and without, round by round."""
    address, processes = broker.address, broker.processes
    assert processes is not None  # it was started here
    peer = control(address)
    declare_bound(peer, [_BUSY, _SILENT], ["g.#", "s.#"])
    with ExitStack() as stack:
        stack.callback(peer.close)
        filler = Herd([source(address, ["s.x"])], [], lead=_SILENT_MESSAGES)
        filler.run(_READY_S, lambda: filler.confirmed >= _SILENT_MESSAGES)
        filler.close()
        keys = [f"g.{number:05d}" for number in range(KEYS)]
        herd = Herd([source(address, keys)], [_sink(address, _BUSY)])
        stack.callback(herd.close)
        herd.run(_READY_S, lambda: herd.published >= 2 * KEYS)
        ratios: list[tuple[float, float]] = []
        for _ in range(track.plan.rounds):
            without = _cost(herd, broker, track)
            silent = [_silent_consumer(address, queue) for queue in (_SILENT, _BUSY)]
            _run_until_full(herd, track)
            beside = _cost(herd, broker, track)
            for one in silent:
                one.socket.close()  # it does not read, so it would not receive close-ok
            ratios.append((beside[0] / without[0], beside[1] / without[1]))
    row = {
        "rate_ratio": median(rate for rate, _ in ratios),
        "cost_ratio": median(cost for _, cost in ratios),
        "rounds": [{"rate_ratio": rate, "cost_ratio": cost} for rate, cost in ratios],
    }
    track.tell(
        f"beside two that read nothing the others have {row['rate_ratio']:.2f} of their rate, "
        f"at {row['cost_ratio']:.2f} of the cost"
    )
    return row


def _silent_consumer(address: Address, queue: str) -> PeerConnection:
    peer = PeerConnection(address, CONSUME_CHANNEL, receive_bytes=_SILENT_RECEIVE_BYTES)
    peer.consume(queue, "silent", auto_ack=True, prefetch=0)
    return peer


def _run_until_full(herd: Herd, track: Track) -> None:
    """Publish until sockets and connection are full of the messages that the silent consumer does not read."""
    for _ in range(_FULL_LOOKS):
        moved = herd.run(track.plan.settle_s)
        if sum(moved.got_each) >= sum(moved.sent_each) * _FULL_SHARE:
            return


def _cost(herd: Herd, broker: Broker, track: Track) -> tuple[float, float]:
    """Return the others' messages per second, and the broker's CPU microseconds for each."""
    assert broker.processes is not None
    herd.run(track.plan.settle_s)
    before = broker.processes.usage().cpu_s
    moved = herd.run(track.plan.seconds)
    messages = max(1.0, moved.messages)
    return messages / moved.seconds, (broker.processes.usage().cpu_s - before) / messages * 1e6
