"""`slotmq pipeline route`: compute which queues the bindings in a file would route a lake's messages to."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from broker.cli.control_client import ask
from broker.cli.parser import BadUsage, add_command, add_switch, add_value
from broker.pipeline.faults import JobRefused, restated
from broker.pipeline.job import Progress, Summary, add_spark, carry_out, open_lake, options_of, path_argument
from broker.pipeline.routes.matcher import BadTopology, compiled
from broker.pipeline.routes.route_count import (
    ROUTE_PROPERTIES,
    SHOWN_MAX,
    busiest_keys,
    counted_routes,
    named,
    route_properties_column,
    with_queues,
)
from broker.pipeline.routes.topology import BadBindings, Topology, read_bindings, read_definitions
from broker.pipeline.selection import Selection, add_selection, selection_of

LINES_MAX: Final = 20  # printed for each kind; --json prints more
TAP_QUEUE_PREFIX: Final = "amq.tap."


@dataclass(frozen=True, slots=True)
class RouteOptions:
    """The messages and bindings to match; `today` is a topology to compare with, `rows` an output folder."""

    spark: Callable[[], SparkSession]
    selection: Selection
    topology: Topology
    today: Topology | None = None
    rows: Path | None = None


def add_route(commands: Any) -> None:
    """Add the command."""
    command = add_command(commands, "route", "compute which queues would receive a lake's messages with other bindings")
    text = "definitions JSON, JSON lines, or CSV exchange,pattern,queue; default vhost --vhost, or /"
    add_value(command, "--bindings", "FILE", text, type=path_argument, required=True)
    add_switch(command, "--diff", "compare with today's bindings")
    add_value(command, "--path", "D", "data folder of a running broker, for today's bindings")
    add_value(command, "--today", "FILE", "a file with today's bindings", type=path_argument)
    add_value(command, "--rows", "OUT", "write the messages with their queues as Parquet", type=path_argument)
    add_selection(command)
    add_spark(command)
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.diff and (arguments.path is None) == (arguments.today is None):
        raise BadUsage("--diff needs either --path D or --today FILE")
    if not arguments.diff and (arguments.path is not None or arguments.today is not None):
        raise BadUsage("--path and --today belong to --diff")
    if arguments.rows is not None and arguments.rows.exists():
        raise BadUsage(f"{arguments.rows} already exists")
    with restated((BadBindings, BadTopology), BadUsage):
        topology = read_bindings(arguments.bindings, arguments.vhost or "/")
        today = None
        if arguments.today is not None:
            today = read_bindings(arguments.today, arguments.vhost or "/")
        elif arguments.path is not None:
            today = running_topology(arguments.path)
        for name, tried in named(topology, *filter(None, [today])):
            compiled(name, tried)  # report an error in the file before Spark starts
    options = options_of(RouteOptions, arguments, selection=selection_of(arguments), topology=topology, today=today)
    return carry_out(arguments, "route", lambda progress: run_route(options, progress))


def running_topology(folder: str) -> Topology:
    """Return the topology of the broker that runs on a data folder, without the queues of taps.

    Raises: Unanswered if no broker runs there; BadBindings, BadTopology.
    """
    document = {kind: ask(folder, f"list_{kind}") for kind in ("exchanges", "queues", "bindings", "policies")}
    queues = [row for row in document["queues"] if not row["name"].startswith(TAP_QUEUE_PREFIX)]
    bindings = [row for row in document["bindings"] if not row["destination"].startswith(TAP_QUEUE_PREFIX)]
    exchanges = [row for row in document["exchanges"] if row["name"]]
    return read_definitions({**document, "exchanges": exchanges, "queues": queues, "bindings": bindings})


def run_route(options: RouteOptions, progress: Progress) -> Summary:
    """Count the routes, write the messages if requested, and return the summary. Raises: JobFailed."""
    open_lake(options.selection.lake)  # check the lake before Spark starts
    progress.step("starting Spark")
    spark = options.spark()
    progress.step("matching distinct keys")
    frame = options.selection.messages(spark)
    with restated(BadTopology, JobRefused):
        values = count_frame(frame, options.topology, options.today)
    progress.add(rows=values["messages"])
    if options.rows is not None:
        progress.step("writing rows")
        routed_rows(frame, options.topology).write.parquet(str(options.rows.absolute()))
        values["rows"] = str(options.rows)
    return Summary(values, lines=tuple(lines_of(values)))


def count_frame(frame: DataFrame, topology: Topology, today: Topology | None = None) -> dict[str, Any]:
    """Return the values of the summary for the messages of a frame."""
    return summary_of(counted_routes(frame, named(topology, *filter(None, [today]))), topology, today)


def routed_rows(frame: DataFrame, topology: Topology) -> DataFrame:
    """Return the messages that would reach a queue, with a column that lists the queues of each."""
    topologies = named(topology)
    fields = [f"`{field.name}` {field.dataType.simpleString()}" for field in frame.schema.fields]
    asked = frame.withColumn(ROUTE_PROPERTIES, route_properties_column(topologies))
    return asked.mapInArrow(with_queues(topologies), ", ".join([*fields, "queues array<string>"]))


def summary_of(rows: Iterable[Mapping[str, Any]], topology: Topology, today: Topology | None) -> dict[str, Any]:
    """Return the values of the summary from the counted rows."""
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_kind.setdefault(row["kind"], []).append(row)
    totals = {row["name"]: (row["messages"], row["keys"]) for row in by_kind.get("total", ())}

    def total(name: str, at: int = 0) -> int:
        return int(totals.get(name, (0, 0))[at])

    counted = {row["number"]: row for row in by_kind.get("binding", ())}
    dead = [str(binding) for number, binding in enumerate(topology.bindings) if number not in counted]
    values: dict[str, Any] = {
        "messages": total("all"),
        "keys": total("all", 1),
        "routed": total("routed"),
        "copies": total("copies"),
        "nobody_gets": total("all") - total("routed"),
        "keys_nobody_gets": total("all", 1) - total("routed", 1),
        "without_exchange": total("no exchange"),
        "bindings": len(topology.bindings),
        "dead": len(dead),
        "queues": _ranked(by_kind.get("queue", ()), "queue"),
        "by_binding": [
            {
                "vhost": topology.bindings[number].vhost,
                "binding": str(topology.bindings[number]),
                "messages": row["messages"],
                "keys": row["keys"],
            }
            for number, row in sorted(counted.items(), key=lambda item: (-item[1]["messages"], item[0]))
        ],
        "dead_bindings": dead,
        "unrouted_keys": busiest_keys(by_kind.get("nobody", ()), "key", SHOWN_MAX),
    }
    if today is not None:
        values["diff"] = {
            "messages": total("changed"),
            "keys": total("changed", 1),
            "lost_by_all": total("lost by all"),
            "gained": _ranked(by_kind.get("gained", ()), "queue"),
            "lost": _ranked(by_kind.get("lost", ()), "queue"),
            "today": _ranked(by_kind.get("today", ()), "queue"),
            "changed_keys": busiest_keys(by_kind.get("moved", ()), "key", SHOWN_MAX),
            "bindings_added": _only_in(topology, today),
            "bindings_removed": _only_in(today, topology),
        }
    return values


def _ranked(rows: Iterable[Mapping[str, Any]], what: str) -> list[dict[str, Any]]:
    ordered = sorted(rows, key=lambda row: (-row["messages"], row["vhost"], row["name"]))
    return [
        {"vhost": row["vhost"], what: row["name"], "messages": row["messages"], "keys": row["keys"]} for row in ordered
    ]


def _only_in(topology: Topology, other: Topology) -> list[str]:
    known = {binding.identity for binding in other.bindings}
    return [str(binding) for binding in topology.bindings if binding.identity not in known]


def lines_of(values: Mapping[str, Any]) -> Iterable[str]:
    """Yield the summary as lines of text."""
    yield f"{values['messages']:,} messages under {values['keys']:,} keys; {values['copies']:,} copies to queues"
    lost = f"{values['nobody_gets']:,} messages under {values['keys_nobody_gets']:,} keys reach nobody"
    unknown = values["without_exchange"]
    yield f"{lost}; {unknown:,} of them name an exchange that does not exist" if unknown else lost
    yield from _table("queue", values["queues"])
    yield from _table("nobody gets", values["unrouted_keys"])
    yield f"{values['dead']:,} of {values['bindings']:,} bindings match nothing"
    yield from (f"  {binding}" for binding in values["dead_bindings"][:LINES_MAX])
    diff = values.get("diff")
    if diff is not None:
        yield f"against today: {diff['messages']:,} messages under {diff['keys']:,} keys go elsewhere"
        yield f"{diff['lost_by_all']:,} of them would reach nobody any more"
        yield f"{len(diff['bindings_added']):,} bindings added, {len(diff['bindings_removed']):,} removed"
        for name in ("gained", "lost", "changed_keys"):
            yield from _table(name.replace("_", " "), diff[name])
    if "rows" in values:
        yield f"rows: {values['rows']}"


def _table(name: str, rows: list[dict[str, Any]]) -> Iterable[str]:
    for row in rows[:LINES_MAX]:
        where = row.get("queue") or f"{row.get('exchange', '')} {row.get('key', '')}"
        yield f"  {name}: {where}  {row['messages']:,} messages"
    if len(rows) > LINES_MAX:
        yield f"  {name}: and {len(rows) - LINES_MAX:,} more (--json)"
