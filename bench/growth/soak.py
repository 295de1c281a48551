"""Measures a broker's memory while connections, queues, bindings, replies and backlogs are created and deleted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count, cycle
from statistics import median
from typing import Any, Final

from bench import brokers
from bench.ground import EXCHANGE, control, declare_bound
from bench.stage import Stage
from broker.perf import wire
from broker.perf.peer import Address, PeerConnection
from broker.perf.wire import CONSUME_CHANNEL

MIB: Final = 1 << 20
_PACE_S: Final = 0.02  # between two rounds of churn
_SAMPLE_S: Final = 5.0
_BACKLOG: Final = 10_000
_BACKLOG_EVERY: Final = 250  # rounds
_BODY_BYTES: Final = 1000
_PUBLISHED: Final = 5
_QUEUES: Final = 50  # names, used in turn
_PURGE: Final = (50, 30)
_TENTH: Final = 10  # the last tenth is compared with the third: caches fill during the first two


def measure(stage: Stage) -> None:
    """Churn a broker for `soak_s`, and record its resident memory every five seconds."""
    with (
        stage.guarded("the soak"),
        brokers.slotmq(stage.new_folder(), package=stage.package) as broker,
        closing(control(broker.address)) as peer,
    ):
        begun = sampled = time.monotonic()
        samples: list[tuple[float, int]] = []
        rounds = 0
        for rounds in _churned(broker.address, peer):  # noqa: B007 - used after the loop
            now = time.monotonic()
            if now >= sampled:
                sampled += _SAMPLE_S
                samples.append((now - begun, broker.service.processes.usage().rss_bytes))
                stage.run.add("soak", {"rss_mb": samples[-1][1] / MIB}, second=round(samples[-1][0]))
            if now > begun + stage.plan.soak_s:
                break
            time.sleep(_PACE_S)
        usage = broker.service.processes.usage()
        stage.add(
            "soaked", {**_ends(samples), "start_mb": broker.idle_bytes / MIB, "cpu_s": usage.cpu_s}, rounds=rounds
        )


def _ends(samples: list[tuple[float, int]]) -> dict[str, Any]:
    """Return the median memory in the third and in the last tenth of the time, and the highest sample."""
    sizes = [size / MIB for _second, size in samples]
    tenth = max(1, len(sizes) // _TENTH)
    return {
        "early_mb": median(sizes[2 * tenth : 3 * tenth] or sizes),
        "late_mb": median(sizes[-tenth:]),
        "max_mb": max(sizes),
    }


def _churned(address: Address, peer: PeerConnection) -> Iterator[int]:
    """Yield the number of each round: a new connection with a queue, a reply queue, sometimes a backlog."""
    names = cycle([f"soak-{place}" for place in range(_QUEUES)])
    for number in count(1):
        name, key = next(names), f"soak.{number}"
        with closing(PeerConnection(address, CONSUME_CHANNEL)) as client:
            declare_bound(client, [name], [f"{key}.#"])
            message = wire.publish(client.channel, EXCHANGE, f"{key}.a", bytes(_BODY_BYTES), persistent=True)
            client.socket.sendall(message * _PUBLISHED)
            client.consume(name, "c", auto_ack=True, prefetch=0)
        peer.call(wire.queue_delete(peer.channel, name), wire.QUEUE_DELETE_OK)
        reply = f"soak-reply-{number}"
        peer.declare_queue(reply, durable=False)
        peer.socket.sendall(wire.publish(peer.channel, "", reply, b"answer", persistent=False))
        peer.call(wire.queue_delete(peer.channel, reply), wire.QUEUE_DELETE_OK)
        if number % _BACKLOG_EVERY == 0:
            _backlog(peer)
        yield number


def _backlog(peer: PeerConnection) -> None:
    name = "soak-backlog"
    peer.declare_queue(name, durable=True)
    many = wire.publish(peer.channel, "", name, bytes(_BODY_BYTES), persistent=True) * 100
    for _ in range(_BACKLOG // 100):
        peer.socket.sendall(many)
    peer.call(wire.method(peer.channel, _PURGE, b"\0\0" + wire.short_string(name) + b"\0"), (50, 31))
    peer.call(wire.queue_delete(peer.channel, name), wire.QUEUE_DELETE_OK)
