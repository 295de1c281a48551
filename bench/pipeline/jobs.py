"""Measures archive, SQL, route and replay in one Spark session, each beside a peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.brokers import slotmq
from bench.ground import control, declare_bound
from bench.perf_run import perf
from bench.pipeline.ground import EXCHANGE, Ground, Work, quiet
from bench.stage import WrongResult
from bench.topics import workload
from broker.client.address import AmqpAddress
from broker.pipeline.jobs.replay import NO_PRODUCER, ReplayOptions, run_replay
from broker.pipeline.jobs.route import RouteOptions, run_route
from broker.pipeline.routes.topology import RoutedBinding, RoutedExchange, Topology
from broker.pipeline.selection import Selection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ARCHIVE: Final = "archive: slots to a lake"
SLOTS: Final = "SQL over slots, all columns"
ROUTE: Final = "route: every pattern, distinct keys"
REPLAY: Final = "replay: a lake to a broker"
PLAIN: Final = "a plain publisher"
_CODEC: Final = "zstd"
_NARROW: Final = ("routing_key", "body")
_QUEUES: Final = 500
_QUEUE: Final = "bench-replay"
_LIMIT_S: Final = 600.0


def archive(ground: Ground) -> None:
    """Measure the archive job, Spark's own copy from Parquet to Parquet, and our reader with Spark's writer."""
    files, spark = ground.lake_files(), ground.spark
    rows: int = ground.plan.rows

    def job(folder: Path) -> int:
        return ground.archive(ground.slots, folder / "lake", rows)

    def parquet(folder: Path) -> int:
        spark.read.parquet(*files).write.option("compression", _CODEC).parquet(str(folder / "out"))
        return rows

    def source(folder: Path) -> int:
        frame = spark.read.format("slotmq").option("path", str(ground.slots)).load()
        frame.write.option("compression", _CODEC).parquet(str(folder / "out"))
        return rows

    contestants = {
        ARCHIVE: job,
        "Spark: Parquet to Parquet": parquet,
        "slotmq source to Spark's Parquet writer": source,
    }
    ground.race("archive", contestants, ground.plan.rounds)


def sql(ground: Ground) -> None:
    """Measure one aggregate over the slots of a running broker and over Parquet, of all columns and of two."""
    files, spark = ground.lake_files(), ground.spark
    rows: int = ground.plan.rows
    with slotmq(ground.slots.parent) as broker:
        folder = str(broker.folder)

        def slots(columns: Sequence[str]) -> DataFrame:
            reader = spark.read.format("slotmq").option("path", folder)
            return (reader.option("columns", ",".join(columns)) if columns else reader).load()

        def parquet(columns: Sequence[str]) -> DataFrame:
            frame = spark.read.parquet(*files)
            return frame.select(*columns) if columns else frame

        def asked(frame_of: Callable[[Sequence[str]], DataFrame], columns: Sequence[str]) -> Work:
            sums = aggregates(parquet(columns))
            right = _answer(parquet(columns), sums)

            def work(_folder: Path) -> int:
                found = _answer(frame_of(columns), sums)
                if found != right:
                    raise WrongResult(f"sql: the answers differ: {found} and {right}")
                return rows

            return work

        contestants = {
            SLOTS: asked(slots, ()),
            "SQL over Parquet, all columns": asked(parquet, ()),
            "SQL over slots, two columns": asked(slots, _NARROW),
            "SQL over Parquet, two columns": asked(parquet, _NARROW),
        }
        ground.race("sql", contestants, ground.plan.rounds)


def aggregates(frame: DataFrame) -> tuple[str, ...]:
    """Return expressions that need every value of a frame."""
    by_kind = dict.fromkeys(("string", "binary"), "sum(length({}))") | dict.fromkeys(
        ("timestamp", "boolean"), "max({})"
    )
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    return ("count(*)", *(by_kind.get(kind, "sum({})").format(name) for name, kind in kinds.items()))


def _answer(frame: DataFrame, sums: Sequence[str]) -> tuple[Any, ...]:
    return tuple(frame.selectExpr(*sums).collect()[0])


def topology(patterns: int) -> Topology:
    """Return this many bindings of one topic exchange, spread over 500 queues."""
    texts = workload.patterns(patterns)
    bindings = [RoutedBinding("/", EXCHANGE, text, f"q{at % _QUEUES}") for at, text in enumerate(texts)]
    queues = tuple(("/", name) for name in dict.fromkeys(binding.destination for binding in bindings))
    return Topology((RoutedExchange("/", EXCHANGE, "topic"),), queues, tuple(bindings))


def _route(ground: Ground, lake: Path, bindings: Topology, rows: int) -> dict[str, Any]:
    """Run the job over a lake and return its summary. Raises: WrongResult."""
    options = RouteOptions(spark=lambda: ground.spark, selection=Selection(lake), topology=bindings)
    values = dict(run_route(options, quiet("route")).values)
    if values["messages"] != rows:
        raise WrongResult(f"route: {values['messages']:,} of {rows:,} messages")
    return values


def route(ground: Ground) -> None:
    """Measure routing by thousands of patterns, and the one pass over the keys that it consists of."""
    lake, spark, files = ground.lake, ground.spark, ground.lake_files()
    rows: int = ground.plan.rows
    bindings = topology(ground.plan.patterns)
    found = _route(ground, lake, bindings, rows)

    def job(_folder: Path) -> int:
        _route(ground, lake, bindings, rows)
        return rows

    def counted(_folder: Path) -> int:
        keys = spark.read.parquet(*files).groupBy("vhost", "exchange", "routing_key").count().count()
        if keys != found["keys"]:
            raise WrongResult(f"route: {found['keys']:,} keys, and Spark counts {keys:,}")
        return rows

    ground.race("route", {ROUTE: job, "Spark: count the distinct keys": counted}, ground.plan.rounds)


def replay(ground: Ground) -> None:
    """Measure a replay of a lake into a broker, and `slotmq perf` with as many messages, both with confirms."""
    plan = ground.plan
    rows: int = plan.replay_rows
    store = ground.new_store("replay")
    store.add(rows)
    store.close()
    lake = ground.folder / "replay" / "lake"
    ground.archive(store.path, lake, rows)
    producers = count(1)
    with slotmq(ground.folder / "target") as broker:

        def plain(_folder: Path) -> int:
            flags = f"-y 0 -e {EXCHANGE} -k replayed --keys {plan.keys} --persistent -p -s {plan.body_bytes}"
            words = f"{flags} -c 1000 -C {rows} -z 0".split()
            return perf(broker, "throughput", *words, limit_s=_LIMIT_S)[0].totals.confirmed

        def job(producer: str) -> int:
            address = AmqpAddress.parse(f"amqp://guest:guest@{broker.address.host}:{broker.address.port}/%2F")
            options = ReplayOptions(
                spark=lambda: ground.spark, selection=Selection(lake), to=address, producer=producer, window=1000
            )
            return int(run_replay(options, quiet("replay")).values["published"])

        def counted_in(work: Work) -> Work:
            """Return work with a new queue, which must contain every message at the end."""

            def checked(folder: Path) -> int:
                broker.delete(_QUEUE, EXCHANGE)
                with closing(control(broker.address, EXCHANGE, durable=True)) as peer:
                    declare_bound(peer, [_QUEUE], ["#"], EXCHANGE, durable=True)
                published, ready = work(folder), broker.count(_QUEUE)
                if not published == ready == rows:
                    raise WrongResult(f"replay: {published:,} of {rows:,} messages, the queue has {ready:,}")
                return rows

            return checked

        contestants = {
            REPLAY: counted_in(lambda _folder: job(f"bench-{next(producers)}")),
            PLAIN: counted_in(plain),
            "replay without numbers": counted_in(lambda _folder: job(NO_PRODUCER)),
        }
        ground.race("replay", contestants, plan.replay_rounds)
