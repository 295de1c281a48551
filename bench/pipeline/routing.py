"""Measures routing by thousands of wildcard patterns, over a lake whose messages have distinct keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.pipeline.slot_store import EXCHANGE
from bench.pipeline.stage import Stage, WrongResult, quiet
from bench.topics import workload
from broker.pipeline.jobs.route import RouteOptions, run_route
from broker.pipeline.routes.topology import RoutedBinding, RoutedExchange, Topology
from broker.pipeline.selection import Selection

ROUTE = "route: every pattern, distinct keys"
SPARK = "Spark: count the distinct keys"
_QUEUES = 500


def topology(patterns: int) -> Topology:
    """Return that many bindings of one topic exchange, spread over 500 queues."""
    texts = workload.patterns(patterns)
    bindings = [RoutedBinding("/", EXCHANGE, text, f"q{at % _QUEUES}") for at, text in enumerate(texts)]
    queues = tuple(("/", name) for name in dict.fromkeys(binding.destination for binding in bindings))
    return Topology((RoutedExchange("/", EXCHANGE, "topic"),), queues, tuple(bindings))


def route(stage: Stage, lake: Path, bindings: Topology, rows: int) -> dict[str, Any]:
    """Run the job over a lake and return its summary. Raises: WrongResult."""
    options = RouteOptions(spark=lambda: stage.spark, selection=Selection(lake), topology=bindings)
    values = dict(run_route(options, quiet("route")).values)
    if values["messages"] != rows:
        raise WrongResult(f"route: {values['messages']:,} of {rows:,} messages")
    return values


def measure(stage: Stage) -> dict[str, Any]:
    """Return rows per second and CPU time of the route job, and of the one pass over the keys that it consists of."""
    rows, lake, spark = stage.plan.rows, stage.lake, stage.spark
    files = stage.lake_files()
    bindings = topology(stage.plan.patterns)
    found = route(stage, lake, bindings, rows)

    def job(_folder: Path) -> int:
        route(stage, lake, bindings, rows)
        return rows

    def count(_folder: Path) -> int:
        keys = spark.read.parquet(*files).groupBy("vhost", "exchange", "routing_key").count().count()
        if keys != found["keys"]:
            raise WrongResult(f"route: {found['keys']:,} keys, and Spark counts {keys:,}")
        return rows

    return {
        "patterns": stage.plan.patterns,
        "keys": found["keys"],
        "copies": found["copies"],
        "contestants": stage.race("route", {ROUTE: job, SPARK: count}, stage.plan.rounds),
    }
