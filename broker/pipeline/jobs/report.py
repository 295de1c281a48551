"""`slotmq pipeline report`: show a lake's traffic, and the reach of a broker's bindings, as one HTML file."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from broker.cli.control_client import Unanswered, ask
from broker.cli.parser import BadUsage, add_command, add_value
from broker.figures.markup import document, escaped, tiles
from broker.figures.numerals import short_text, size_text, span_text
from broker.pipeline.faults import JobRefused, restated
from broker.pipeline.job import (
    Progress,
    Summary,
    add_broker,
    add_spark,
    carry_out,
    open_lake,
    options_of,
    path_argument,
    write_whole,
)
from broker.pipeline.jobs.route import running_topology
from broker.pipeline.lake.lake import Lake
from broker.pipeline.options import now_ms
from broker.pipeline.report import broker_sections, traffic_sections
from broker.pipeline.report.broker_sections import consumer_rows, reach, redundant_bindings, tap_rows
from broker.pipeline.report.traffic import forecast, instant, slice_name, traffic
from broker.pipeline.routes.matcher import BadTopology, Matcher
from broker.pipeline.routes.route_count import counted_routes, named
from broker.pipeline.routes.topology import BadBindings, Topology, read_bindings
from broker.pipeline.selection import Selection, add_selection, selection_of
from broker.pipeline.source.catalog import open_catalog


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """The messages to report on, and the broker to compare with.

    Shapes: `path` is a data folder, `url` an http(s) URL, and `bindings` a file that replaces the bindings of the
    running broker. Without `output`, no page is written.
    """

    spark: Callable[[], SparkSession]
    selection: Selection
    output: Path | None = None
    path: str | None = None
    url: str | None = None
    bindings: Path | None = None
    now_ms: Callable[[], int] = now_ms


def add_report(commands: Any) -> None:
    """Add the command."""
    command = add_command(commands, "report", "report a lake's traffic as one HTML file")
    command.add_argument(
        "-o", "--output", metavar="FILE", type=path_argument, required=True, help="the HTML file to write"
    )
    group = command.add_argument_group("broker")
    add_broker(group, "; a running broker adds bindings and consumers", ", for slots and cursors")
    add_value(group, "--bindings", "FILE", "bindings to use instead of the broker's", type=path_argument)
    add_selection(command)
    add_spark(command)
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.path is not None and arguments.url is not None:
        raise BadUsage("--path and --url are two brokers: name one of them")
    if not arguments.output.absolute().parent.is_dir():
        raise BadUsage(f"{arguments.output}: there is no such folder")
    if arguments.output.is_dir():
        raise BadUsage(f"{arguments.output} is a folder, and should be a file")
    options = options_of(ReportOptions, arguments, selection=selection_of(arguments))
    return carry_out(arguments, "report", lambda progress: run_report(options, progress))


def run_report(options: ReportOptions, progress: Progress) -> Summary:
    """Write the page, and return the report's values. Raises: JobFailed."""
    values = report_values(options, progress)
    if options.output is None:
        return Summary(values)
    progress.step("drawing")
    text = page(values)
    write_whole(options.output, lambda path: path.write_text(text, encoding="utf-8", errors="backslashreplace"))
    found = values["traffic"]
    lines = [f"{options.output}: {found['messages'] if found else 0:,} messages"]
    return Summary({**values, "output": str(options.output)}, lines=tuple(lines))


def report_values(options: ReportOptions, progress: Progress) -> dict[str, Any]:
    """Return the report's values; unknown ones are None. Raises: JobFailed. Cost: at most four passes over messages."""
    lake = open_lake(options.selection.lake)
    topology, source, queues = _broker(options, progress)
    now_ms = options.now_ms()
    taps = None
    if options.path is not None or options.url is not None:
        with closing(open_catalog(options.path, options.url)) as catalog:
            taps = tap_rows(catalog.view(), now_ms)
    progress.step("starting Spark")
    spark = options.spark()
    progress.step("counting messages")
    frame = options.selection.messages(spark)
    found = traffic(frame)
    if found is not None:
        progress.add(rows=found["messages"])
    reached = None
    if topology is not None:
        progress.step("matching keys")
        reached = reach(counted_routes(frame, named(topology)), topology)
    return {
        "made": instant(now_ms),
        "lake": str(lake.place),
        "selection": options.selection.to_json(),
        "traffic": found,
        "bindings_of": source,
        "reach": reached,
        "redundant_bindings": None
        if topology is None
        else [
            {"vhost": binding.vhost, "binding": str(binding), "covered_by": str(other)}
            for binding, other in redundant_bindings(topology)
        ],
        "taps": taps,
        "queues": queues,
        "forecast": None if found is None else _forecast(lake, found),
    }


def _broker(
    options: ReportOptions, progress: Progress
) -> tuple[Topology | None, str | None, list[dict[str, Any]] | None]:
    """Return the topology, a description of its source, and the state of the queues. Raises: JobFailed."""
    topology = source = queues = None
    with restated((BadBindings, BadTopology), JobRefused):
        if options.path is not None:
            try:
                queues = consumer_rows(ask(options.path, "list_queues"), ask(options.path, "list_consumers"))
                topology, source = running_topology(options.path), "the broker's bindings"
            except Unanswered as unanswered:  # the slots can be read without a running broker
                progress.say(f"{unanswered}: the report does not show its queues")
        if options.bindings is not None:
            topology, source = read_bindings(options.bindings), f"the bindings in {options.bindings}"
        if topology is not None:
            Matcher(topology)  # report an invalid topology before Spark starts
    return topology, source, queues


def _forecast(lake: Lake, found: dict[str, Any]) -> dict[str, Any] | None:
    """Return the forecast, which assumes that future messages have the mean size of those in the lake."""
    files = lake.files()
    return forecast(
        {int(day): count for day, count in found["by_day"].items()},
        found["first_ms"],
        found["last_ms"],
        lake_rows=sum(file.rows for file in files),
        lake_bytes=sum(file.bytes for file in files),
        free_bytes=None if lake.place.folder is None else shutil.disk_usage(lake.place.folder).free,
    )


def page(values: Mapping[str, Any]) -> str:
    """Return the HTML page of a report's values."""
    traffic = values["traffic"]
    sections = {} if traffic is None else traffic_sections.SECTIONS
    others = {**broker_sections.SECTIONS, "Forecast": traffic_sections.forecast_section}
    bodies = {title: section(traffic) for title, section in sections.items()}
    bodies |= {title: section(values) for title, section in others.items()}
    names = {title: title.lower().replace(" ", "-") for title in bodies}
    links = "".join(f'<a href="#{names[title]}">{escaped(title)}</a>' for title in bodies)
    body = "".join(
        f'<section id="{names[title]}"><h2>{escaped(title)}</h2>\n{made}</section>\n' for title, made in bodies.items()
    )
    chosen = "".join(
        f"; {name} {' '.join(value) if isinstance(value, list) else value}"
        for name, value in values["selection"].items()
        if value
    )
    lake = escaped(str(values["lake"]))
    head = (
        f'<h1>Traffic report</h1>\n<p class="soft">Lake <code>{lake}</code>{escaped(chosen)}. '
        f"Made {escaped(values['made'])}. All times are UTC.</p>\n{_headline(values)}<nav>{links}</nav>\n"
    )
    return document(f"Traffic report: {values['lake']}", head + body)


def _headline(values: Mapping[str, Any]) -> str:
    traffic, reach = values["traffic"], values["reach"]
    if traffic is None:
        return "<p>There is no message in this part of the lake.</p>"
    span_s = (traffic["last_ms"] - traffic["first_ms"]) / 1000
    facts = [
        (short_text(traffic["messages"]), "messages"),
        (size_text(traffic["bytes"]), "in their bodies"),
        (short_text(traffic["keys"]), "routing keys"),
        (span_text(span_s), f"from {traffic['first'][:19].replace('T', ' ')}"),
        (f"{short_text(traffic['messages'] / span_s) if span_s else '-'}/s", "on average"),
        (short_text(max(traffic["rate"]["messages"])), f"in the busiest {slice_name(traffic['slice_ms'])}"),
    ]
    if reach is not None:
        facts += [
            (f"{reach['mean']:.2f}", "queues a message, on average"),
            (short_text(reach["unmatched_messages"]), "messages that no queue receives"),
            (short_text(len(reach["dead_bindings"])), f"dead of {reach['bindings']:,} bindings"),
            (short_text(len(values["redundant_bindings"])), "redundant bindings"),
        ]
    return tiles(facts)
