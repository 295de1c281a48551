"""Measures the replay of a lake into a broker against a plain publisher of the same messages, both with confirms."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

from bench.brokers import Broker, slotmq
from bench.counters import Counters
from bench.pipeline.slot_store import EXCHANGE
from bench.pipeline.stage import Stage, WrongResult, quiet
from bench.publisher import LoadPublisher, PublisherPace
from bench.tape import publish_tape
from broker.client.address import AmqpAddress
from broker.perf.peer import PeerConnection
from broker.perf.wire import PUBLISH_CHANNEL
from broker.pipeline.jobs.replay import NO_PRODUCER, ReplayOptions, run_replay
from broker.pipeline.selection import Selection

PLAIN = "a plain publisher"
REPLAY = "replay: a lake to a broker"
UNNUMBERED = "replay without numbers"
_QUEUE = "bench-replay"
_WINDOW = 1000
_STALL_S = 60.0
_LIMIT_S = 600.0


def measure(stage: Stage) -> dict[str, Any]:
    """Return messages per second of a replay, and of a generator with the same messages, encoded in advance."""
    rows, plan = stage.plan.replay_rows, stage.plan
    store = stage.new_store("replay")
    store.add(rows)
    store.close()
    lake = stage.folder / "replay" / "lake"
    stage.archive(store.path, lake, rows)
    tape = publish_tape(plan.keys, plan.body_bytes, persistent=True, exchange=EXCHANGE)
    producers = count(1)
    with slotmq(stage.folder / "target") as broker:

        def plain(_folder: Path) -> int:
            peer = PeerConnection(broker.address, PUBLISH_CHANNEL)
            peer.select_confirms()
            LoadPublisher(peer, tape, PublisherPace(_WINDOW, 0, _STALL_S), Counters()).run(rows, _LIMIT_S)
            peer.close()
            return rows

        def replay(producer: str) -> int:
            address = AmqpAddress.parse(f"amqp://guest:guest@{broker.address.host}:{broker.address.port}/%2F")
            options = ReplayOptions(
                spark=lambda: stage.spark, selection=Selection(lake), to=address, producer=producer, window=_WINDOW
            )
            published = run_replay(options, quiet("replay")).values["published"]
            if published != rows:
                raise WrongResult(f"replay: {published:,} of {rows:,} messages published")
            return rows

        def kept(work: Any) -> Any:
            def checked(folder: Path) -> int:
                with _Queue(broker, rows):
                    return int(work(folder))

            return checked

        contestants = {
            REPLAY: kept(lambda _folder: replay(f"bench-{next(producers)}")),
            PLAIN: kept(plain),
            UNNUMBERED: kept(lambda _folder: replay(NO_PRODUCER)),
        }
        found = stage.race("replay", contestants, plan.replay_rounds)
    rates = {one["name"]: one["rows_per_s"] for one in found}
    return {"contestants": found, "ratio": rates[REPLAY] / rates[PLAIN]}


class _Queue:
    """An empty durable queue that receives every message, and must hold all of them at the end."""

    def __init__(self, broker: Broker, rows: int) -> None:
        self._broker = broker
        self._rows = rows

    def __enter__(self) -> None:
        peer = PeerConnection(self._broker.address, PUBLISH_CHANNEL)
        peer.declare_exchange(EXCHANGE, durable=True)
        peer.declare_queue(_QUEUE, durable=True)
        peer.bind(_QUEUE, EXCHANGE, "#")
        peer.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        peer = PeerConnection(self._broker.address, PUBLISH_CHANNEL)
        ready = peer.declare_queue(_QUEUE, durable=True)
        peer.delete(_QUEUE, EXCHANGE)
        peer.close()
        if kind is None and ready != self._rows:
            raise WrongResult(f"replay: the queue has {ready:,} of {self._rows:,} messages")
