"""`slotmq pipeline deadletters`: report why messages were dead-lettered, and republish dead letters from a lake."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual alias

from broker.amqp.deaths import PastDeath, death_of, revived
from broker.amqp.wire import PROPERTIES_AT
from broker.cli.parser import BadUsage, add_command, add_list, add_switch, add_value
from broker.client.address import AmqpAddress, BadAddress
from broker.pipeline.faults import BAD_RECORDS, OK, faults_fail_the_job, restated
from broker.pipeline.formats import live_messages
from broker.pipeline.job import (
    Progress,
    Summary,
    add_broker,
    add_spark,
    carry_out,
    options_of,
    path_argument,
)
from broker.pipeline.selection import Selection, add_selection, selection_of
from broker.pipeline.sink.amqp_publisher import PublisherOptions
from broker.pipeline.sink.property_columns import HEADER_START
from broker.pipeline.sink.publishing import COLUMNS, check_reachable, digest, publish_frame
from broker.pipeline.sink.rows import SinkOptions
from broker.pipeline.source.options import given_options
from broker.pipeline.source.schema import ARROW_SCHEMA, ddl_of

EXCHANGE, QUEUE = "exchange", "queue"
UNROUTABLE: Final = Path("unroutable")
SAMPLE_BYTES: Final = 200
LINES_MAX: Final = 30
GROUP_COLUMNS: Final = ("found_in", "reason", "died_in", "exchange", "routing_key")
DEATHS_DDL: Final = (
    "found_in string, reason string, died_in string, exchange string, routing_key string, "
    "ts timestamp, deaths bigint, replayed bigint, offset bigint, headers string, body binary"
)
INPUT_COLUMNS: Final = ("queue", "offset", "ts", "headers", "properties_raw", "body")


@dataclass(frozen=True, slots=True)
class DeathFilter:
    """A filter of dead letters by reason and queue; an empty tuple matches all."""

    reasons: tuple[str, ...] = ()
    died_in: tuple[str, ...] = ()

    def __call__(self, death: PastDeath | None) -> bool:
        """Return whether a message with this latest death matches; a message without a death does not."""
        if death is None or (self.reasons and death.reason not in self.reasons):
            return False
        return not self.died_in or death.queue in self.died_in


@dataclass(frozen=True, slots=True)
class DeadLetterOptions:
    """The dead letters to process, and what to do with them.

    Shapes: one of `path`, `url` and `selection` is set; with `path` or `url`, the current contents of `queues` are
    read. `unroutable` is the folder for messages that the broker refuses.
    """

    spark: Callable[[], SparkSession]
    path: str | None = None
    url: str | None = None
    selection: Selection | None = None
    queues: tuple[str, ...] = ()
    vhost: str = "/"
    wanted: DeathFilter = field(default_factory=DeathFilter)
    to: AmqpAddress | None = None
    into: str = EXCHANGE
    rate: float = 0.0
    unroutable: Path = UNROUTABLE


def add_deadletters(commands: Any) -> None:
    """Add the command."""
    command = add_command(
        commands, "deadletters", "show why messages were dead-lettered, and republish those of a lake"
    )
    add_broker(command, "; --queue names the queues")
    add_list(command, "--reason", "R", "only this reason: rejected, expired, maxlen, delivery_limit")
    add_list(command, "--died-in", "Q", "only messages that died in this queue")
    add_switch(command, "--replay", "republish those of --lake; for a queue use slotmq requeue-dead-letters")
    add_value(command, "--to", "URL", "the broker to publish to: amqp://user:password@host:port/vhost")
    command.add_argument(
        "--into", choices=(EXCHANGE, QUEUE), default=EXCHANGE,
        help="exchange: their first exchange and key (default); queue: only the queue in which they died",
    )  # fmt: skip
    add_value(command, "--rate", "N", "messages per second", type=float, default=0.0)
    text = "folder for messages that the broker refuses"
    add_value(command, "--unroutable", "DIR", text, type=path_argument, default=UNROUTABLE)
    add_selection(command, required=False)
    add_spark(command)
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    given = [place for place in (arguments.path, arguments.url, arguments.lake) if place is not None]
    if len(given) != 1:
        raise BadUsage("name the source of dead letters with one of --path DIR, --url URL and --lake DIR")
    if arguments.lake is None:
        if not arguments.queues:
            raise BadUsage("name the queues with the dead letters: --queue Q")
        if any((arguments.since, arguments.until, arguments.pattern, arguments.where)):
            raise BadUsage("--from, --until, --pattern and --where belong to --lake")
    if arguments.replay != (arguments.to is not None):
        raise BadUsage("--replay and --to URL belong together")
    if arguments.replay and arguments.lake is None:
        raise BadUsage("--replay belongs to --lake; slotmq requeue-dead-letters moves those of a queue")
    if not arguments.replay and (arguments.rate or arguments.into != EXCHANGE):
        raise BadUsage("--rate and --into belong to --replay")
    if not 0 <= arguments.rate < math.inf:
        raise BadUsage(f"--rate {arguments.rate:g} is not a number of messages per second")
    with restated(BadAddress, BadUsage):
        to = None if arguments.to is None else AmqpAddress.parse(arguments.to)
    options = options_of(
        DeadLetterOptions,
        arguments,
        selection=None if arguments.lake is None else selection_of(arguments),
        vhost=arguments.vhost or "/",
        wanted=DeathFilter(tuple(arguments.reason), tuple(arguments.died_in)),
        to=to,
    )
    return carry_out(arguments, "deadletters", lambda progress: run_deadletters(options, progress))


def run_deadletters(options: DeadLetterOptions, progress: Progress) -> Summary:
    """Group the dead letters, republish them if requested, and return the summary. Raises: JobFailed."""
    if options.to is not None:
        check_reachable(options.to)
    progress.step("starting Spark")
    spark = options.spark()
    progress.step("reading")
    with faults_fail_the_job():
        if options.selection is not None:
            frame = options.selection.messages(spark)
        else:  # the current contents of the queues
            where = {"path": options.path, "url": options.url, "vhost": options.vhost, "queue": options.queues}
            frame = live_messages(spark, given_options(where))
        groups = group_deaths(frame, options.wanted)
        values: dict[str, Any] = {"messages": sum(group["messages"] for group in groups), "groups": groups}
        progress.add(rows=values["messages"])
        if options.to is None:
            return Summary(values, lines=tuple(lines_of(values)))
        progress.step("publishing")
        folder = options.unroutable.absolute() / f"deadletters-{time.time_ns()}"
        values |= _replay(frame, options, folder)
    if refused := values["refused"]:
        values["refused_rows"] = str(folder)
    dropped = f"{values['dropped']:,} dropped, as the broker had them"
    text = f"{values['published']:,} replayed, {refused:,} refused, {dropped}"
    return Summary(values, BAD_RECORDS if refused else OK, (*lines_of(values), text))


def group_deaths(frame: DataFrame, wanted: DeathFilter) -> list[dict[str, Any]]:
    """Group the dead letters of a frame by reason, queue and original route; return the groups, largest first.

    Shapes: `found_in` is the queue that contains the messages, `died_in` the queue of their latest death; `sample` is
    the newest message.
    """

    def deaths(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield with_deaths(batch, wanted)

    sampled = frame.select(*INPUT_COLUMNS[:-1], F.substring("body", 1, SAMPLE_BYTES).alias("body"))
    found = (
        sampled.mapInArrow(deaths, DEATHS_DDL)
        .groupBy(*GROUP_COLUMNS)
        .agg(
            F.count("*").alias("messages"),
            F.min("ts").alias("first"),
            F.max("ts").alias("last"),
            F.sum("deaths").alias("deaths"),
            F.count_if(F.col("replayed") > 0).alias("replayed"),
            F.max_by(F.struct("offset", "headers", "body"), F.struct("ts", "offset")).alias("sample"),
        )
        .orderBy(F.desc("messages"), *GROUP_COLUMNS)
    )
    return [_group(row.asDict(recursive=True)) for row in found.collect()]


def with_deaths(batch: pa.RecordBatch, wanted: DeathFilter) -> pa.RecordBatch:
    """Return the selected dead letters of a batch, with columns that describe their deaths."""
    kept, chosen = chosen_deaths(batch, wanted)
    made = {
        "found_in": kept.column("queue"),
        "reason": pa.array([death.reason for death in chosen], pa.string()),
        "died_in": pa.array([death.queue for death in chosen], pa.string()),
        "exchange": pa.array([death.first_published.exchange for death in chosen], pa.string()),
        "routing_key": pa.array([death.first_published.key for death in chosen], pa.string()),
        "deaths": pa.array([death.count for death in chosen], pa.int64()),
        "replayed": pa.array([death.replayed for death in chosen], pa.int64()),
    }
    names = [column.split()[0] for column in DEATHS_DDL.split(", ")]
    return pa.RecordBatch.from_arrays([made[name] if name in made else kept.column(name) for name in names], names)


def chosen_deaths(batch: pa.RecordBatch, wanted: DeathFilter) -> tuple[pa.RecordBatch, list[PastDeath]]:
    """Return the selected dead letters of a batch, and the latest death of each."""
    raw = batch.column("properties_raw").to_pylist()
    deaths = [death_of(HEADER_START + properties) if properties else None for properties in raw]
    kept = batch.filter(pa.array([wanted(death) for death in deaths], pa.bool_()))
    return kept, [death for death in deaths if death is not None and wanted(death)]


def revived_rows(wanted: DeathFilter, into: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the task that turns rows with COLUMNS into messages to publish; it keeps only selected dead letters."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        alone = into == QUEUE
        for batch in batches:
            kept, chosen = chosen_deaths(batch, wanted)
            exchanges = ["" if alone else death.first_published.exchange for death in chosen]
            keys = [death.queue if alone else death.first_published.key for death in chosen]
            properties = [
                revived(HEADER_START + octets, death, death.first_published, alone=alone)[PROPERTIES_AT:]
                for death, octets in zip(chosen, kept.column("properties_raw").to_pylist(), strict=True)
            ]
            made = {
                "exchange": pa.array(exchanges, pa.string()),
                "routing_key": pa.array(keys, pa.string()),
                "properties_raw": pa.array(properties, pa.binary()),
            }
            columns = [made[name] if name in made else kept.column(name) for name in COLUMNS]
            yield pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))

    return task


def _replay(frame: DataFrame, options: DeadLetterOptions, folder: Path) -> dict[str, int]:
    assert options.to is not None and options.selection is not None, "checked with the arguments"
    ready = frame.select(*COLUMNS).mapInArrow(revived_rows(options.wanted, options.into), ddl_of(ARROW_SCHEMA, COLUMNS))
    named = {"selection": options.selection.to_json(), "to": str(options.to), "into": options.into}
    chosen = {"reasons": options.wanted.reasons, "died_in": options.wanted.died_in}
    publisher = PublisherOptions(producer=f"deadletters-{digest({**named, **chosen})}", rate=options.rate)
    done = publish_frame(ready, SinkOptions(options.to, publisher, bad_records=folder))
    return {name: done[name] for name in ("published", "refused", "dropped")}


def _group(row: dict[str, Any]) -> dict[str, Any]:
    sample = row.pop("sample")
    body = bytes(sample["body"] or b"")
    try:
        text = {"text": body.decode()}
    except UnicodeDecodeError:
        text = {"hex": body.hex()}
    times = {name: row[name].astimezone(UTC).isoformat() for name in ("first", "last")}  # Spark returns local time
    made = {**row, **times}
    return {**made, "sample": {"offset": sample["offset"], "headers": sample["headers"], "body": text}}


def lines_of(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the total and the groups as lines of text."""
    yield f"{values['messages']:,} dead letters"
    for group in values["groups"][:LINES_MAX]:
        again = f", {group['replayed']:,} replayed before" if group["replayed"] else ""
        origin = f"{group['exchange'] or '(default)'} {group['routing_key']}"
        when = f"{group['first']} to {group['last']}"
        yield f"  {group['messages']:,} {group['reason']} in {group['died_in']}{again}: {origin}, {when}"
    if len(values["groups"]) > LINES_MAX:
        yield f"  and {len(values['groups']) - LINES_MAX:,} groups more (--json)"
