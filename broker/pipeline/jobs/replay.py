"""`slotmq pipeline replay`: republish a selection of a lake's messages."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual alias

from broker.cli.parser import BadUsage, add_command, add_list, add_switch, add_value, name_and_text
from broker.client.address import AmqpAddress, BadAddress
from broker.pipeline.faults import BAD_RECORDS, OK, JobRefused, restated
from broker.pipeline.job import Progress, Summary, add_spark, carry_out, open_lake, options_of
from broker.pipeline.lake.place import Disk
from broker.pipeline.routes.key_map import BadKeyMap, KeyMap, read_key_map
from broker.pipeline.selection import Selection, add_selection, selection_of
from broker.pipeline.sink.amqp_publisher import PublisherOptions
from broker.pipeline.sink.property_columns import PRODUCER_MAX_BYTES, PROPERTY_NAMES, HeaderChanges
from broker.pipeline.sink.publishing import Pace, check_reachable, digest, publish_frame, with_mapped_keys
from broker.pipeline.sink.rows import WINDOW_MAX, SinkOptions

NO_PRODUCER: Final = "none"
STATE_FOLDER: Final = "_jobs"  # in the lake's work folder
REFUSED_FOLDER: Final = "unroutable"
STEP_ROWS: Final = 250_000
STEP_S: Final = 10.0  # the intended duration of a step, if a rate or speed is given
FORMAT: Final = 2
BRANCH_COLUMNS: Final = ("store", "incarnation", "vhost", "queue")
Branch = tuple[str | None, ...]
"""The values of BRANCH_COLUMNS: a tap in one history of a store, in which seals ascend. Others reuse their numbers."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The messages to publish, their destination and pace.

    Shapes: if `producer` is empty, a name is derived from the options; "none" publishes without sequence numbers.
    Units: `rate` is messages per second; `speed` 2.0 replays an hour in half an hour.
    """

    spark: Callable[[], SparkSession]
    selection: Selection
    to: AmqpAddress
    exchange: str | None = None
    rate: float = 0.0
    speed: float = 0.0
    key_map: KeyMap = field(default_factory=lambda: KeyMap(()))
    map_sources: tuple[str, ...] = ()
    changes: HeaderChanges = field(default_factory=HeaderChanges)
    producer: str = ""
    dry_run: bool = False
    resume: bool = False
    window: int = 1000


def add_replay(commands: Any) -> None:
    """Add the command."""
    command = add_command(commands, "replay", "publish a slice of a lake again, in order and each message once")
    add_value(command, "--to", "URL", "amqp://user:password@host:port/vhost", required=True)
    add_value(command, "--exchange", "X", "publish to this exchange; default each message's own")
    pace = command.add_mutually_exclusive_group()
    add_value(pace, "--rate", "N", "messages per second; default no limit", type=float, default=0.0)
    add_value(pace, "--speed", "F", "with the original timing, F times as fast", type=float, default=0.0)
    add_list(
        command, "--map", "FILE|OLD=NEW", "new routing keys; in a.*=b.* the second star stands for the matched word"
    )
    add_list(command, "--set-header", "N=V", "set a header to a text", type=name_and_text)
    add_list(command, "--drop-header", "N", "leave out a header")
    add_list(command, "--drop-property", "N", "leave out a property, such as user_id", choices=PROPERTY_NAMES)
    add_value(command, "--producer", "ID", "the producer's name, by which the broker recognises repeats", default="")
    add_value(command, "--window", "N", "at most N unconfirmed messages; default 1000", type=int, default=1000)
    add_switch(command, "--dry-run", "count, and publish nothing")
    add_switch(command, "--resume", "continue an interrupted run")
    add_selection(command)
    add_spark(command)
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if not all(0 <= number < math.inf for number in (arguments.rate, arguments.speed)):
        raise BadUsage("--rate and --speed are numbers above 0")
    if not 1 <= arguments.window <= WINDOW_MAX:
        raise BadUsage(f"--window is between 1 and {WINDOW_MAX:,}")
    if len(arguments.producer.encode()) > PRODUCER_MAX_BYTES:
        raise BadUsage(f"--producer has at most {PRODUCER_MAX_BYTES} bytes")
    with restated((BadAddress, BadKeyMap), BadUsage):
        address, key_map = AmqpAddress.parse(arguments.to), read_key_map(arguments.map)
    options = options_of(
        ReplayOptions,
        arguments,
        selection=selection_of(arguments),
        to=address,
        key_map=key_map,
        map_sources=tuple(arguments.map),
        changes=HeaderChanges(dict(arguments.set_header), tuple(arguments.drop_header), tuple(arguments.drop_property)),
    )
    return carry_out(arguments, "replay", lambda progress: run_replay(options, progress))


def run_replay(options: ReplayOptions, progress: Progress) -> Summary:
    """Publish the messages, and return the summary. Raises: JobFailed."""
    lake = open_lake(options.selection.lake)
    named = _identity(options)
    producer = options.producer or f"replay-{named}"
    state = ReplayState(lake.place.work_folder / STATE_FOLDER / f"replay-{digest({'producer': producer})}.json", named)
    numbered = producer != NO_PRODUCER
    if options.resume:
        with restated(BadReplayState, JobRefused, "--resume: "):
            state.resume()
    if not options.dry_run:
        check_reachable(options.to)
    progress.step("starting Spark")
    spark = options.spark()
    progress.step("counting")
    frame = options.selection.messages(spark)
    slots = slots_of(frame)
    rows = sum(slot.rows for slot in slots)
    values: dict[str, Any] = {"messages": rows, "slots": len(slots), "to": str(options.to), "producer": producer}
    if options.exchange is not None:
        frame = frame.withColumn("exchange", F.lit(options.exchange))
    if options.dry_run:
        return _dry_run(options, frame, values)
    refused_rows = lake.place.work_folder / REFUSED_FOLDER / f"replay-{digest({'producer': producer})}"
    publisher = PublisherOptions(producer=producer if numbered else "", rate=options.rate, window=options.window)
    sink = SinkOptions(options.to, publisher, bad_records=refused_rows, changes=options.changes)
    if not state.done:
        shutil.rmtree(refused_rows, ignore_errors=True)  # this run publishes these messages again
    steps = steps_of(slots, rate=options.rate, speed=options.speed, done=state.done)
    frame = without_done(frame, state.done)
    planned = sum(step.rows for step in steps)
    values["skipped"] = rows - planned
    progress.step("publishing")
    first_us = min((slot.first_us for slot in slots), default=0)
    pace = Pace(options.speed, first_us, began_s=time.time()) if options.speed else None
    totals = Counter(published=0, refused=0, dropped=0, bytes=0)
    for step in steps:
        unsealed = F.coalesce(F.col("seal"), F.lit(0)) == 0
        part = frame.where(F.col("seal").between(step.first, step.last) if step.first else unsealed)
        done = publish_frame(part, sink, pace, key_map=options.key_map, batch=step.batch)
        state.advance(step)
        totals.update(done)
        progress.add(rows=step.rows)
    elapsed_s = progress.elapsed_s
    rate = round(planned / elapsed_s) if elapsed_s > 0 else 0
    values |= {**totals, "elapsed_s": round(elapsed_s, 3), "rows_per_s": rate}
    if totals["refused"]:
        values["refused_rows"] = str(refused_rows)
    return Summary(values, BAD_RECORDS if totals["refused"] else OK)


class BadReplayState(ValueError):
    """A state that cannot be read or belongs to another replay; the text is one line for the user."""


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """The selected rows of a slot: their number, first time and last time. All snapshots of a queue have seal 0."""

    branch: Branch
    seal: int
    rows: int
    first_us: int
    last_us: int


@dataclass(frozen=True, slots=True)
class Step:
    """The seals from `first` to `last`, both inclusive, the number of selected rows in them, and the last seal of each
    branch.
    """

    first: int
    last: int
    rows: int
    ends: dict[Branch, int]

    @property
    def batch(self) -> int:
        """The number of the step and of its repetitions in the log of refused messages."""
        return int(digest({"ends": sorted(map(repr, self.ends.items()))}), 16)


def steps_of(
    slots: Iterable[PlannedRows],
    *,
    rate: float = 0.0,
    speed: float = 0.0,
    done: Mapping[Branch, int] = MappingProxyType({}),
) -> list[Step]:
    """Return the steps after the seals `done`; a step has the slots of one seal, or several small ones.

    Rows of snapshots (seal 0) are the first step, and every run repeats them.
    """
    limit = min(STEP_ROWS, max(1, int(rate * STEP_S))) if rate else STEP_ROWS
    steps: list[Step] = []
    began_us = 0
    for slot in sorted(slots, key=lambda slot: (slot.seal, repr(slot.branch))):  # Spark returns them in any order
        if 0 < slot.seal <= done.get(slot.branch, 0):
            continue
        if steps:
            last = steps[-1]
            too_long = bool(speed) and (slot.last_us - began_us) / 1e6 / speed > STEP_S
            fits = last.first and last.rows + slot.rows <= limit and not too_long
            if fits or slot.seal == last.last:
                last.ends[slot.branch] = slot.seal
                steps[-1] = Step(last.first, slot.seal, last.rows + slot.rows, last.ends)
                continue
        steps.append(Step(slot.seal, slot.seal, slot.rows, {slot.branch: slot.seal}))
        began_us = slot.first_us
    return steps


@dataclass(slots=True)
class ReplayState:
    """The position of one producer's replay, stored in a file that is replaced atomically.

    Invariant: every selected message up to its branch's seal in `done` is confirmed or recorded as refused.
    """

    path: Path
    selection: str
    done: dict[Branch, int] = field(default_factory=dict)

    def resume(self) -> None:
        """Read the position from the file, if it exists. Raises: BadReplayState."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise BadReplayState(f"{self.path}: cannot be read: {error}") from None
        try:
            known, selection = found["format"] == FORMAT and isinstance(found["done"], list), found["selection"]
            done = {tuple(branch): seal for *branch, seal in found["done"]}
        except (KeyError, TypeError, ValueError):
            known = False
        if not known or not all(map(_is_position, done, done.values())):
            raise BadReplayState(f"{self.path}: is not the state of a replay, or is of another version")
        if selection != self.selection:
            raise BadReplayState(f"{self.path}: the producer replayed another selection, or to another target")
        self.done = done

    def advance(self, step: Step) -> None:
        for branch, seal in step.ends.items():
            self.done[branch] = max(seal, self.done.get(branch, 0))
        done = [[*branch, seal] for branch, seal in self.done.items()]
        values = {"selection": self.selection, "done": done, "format": FORMAT}
        Disk().write_whole(self.path, json.dumps(values).encode())


def _is_position(branch: tuple[object, ...], seal: object) -> bool:
    named = all(isinstance(name, str | None) for name in branch)
    return named and len(branch) == len(BRANCH_COLUMNS) and type(seal) is int


def slots_of(frame: DataFrame) -> list[PlannedRows]:
    """Return the number and times of the rows of each slot in a frame."""
    times = F.unix_micros(F.col("ts"))
    found = frame.groupBy(*BRANCH_COLUMNS, F.coalesce(F.col("seal"), F.lit(0)).alias("seal")).agg(
        F.count("*").alias("rows"), F.min(times).alias("first_us"), F.max(times).alias("last_us")
    )
    return [
        PlannedRows(tuple(branch), seal, rows, first_us or 0, last_us or 0)
        for *branch, seal, rows, first_us, last_us in found.collect()
    ]


def without_done(frame: DataFrame, done: Mapping[Branch, int]) -> DataFrame:
    """Return the rows of a frame after the seals `done`."""
    if not done:
        return frame
    columns = {name: f"done_{name}" for name in (*BRANCH_COLUMNS, "seal")}
    ddl = ", ".join(f"{name} {'bigint' if name == 'done_seal' else 'string'}" for name in columns.values())
    passed = frame.sparkSession.createDataFrame([(*branch, seal) for branch, seal in done.items()], ddl)
    is_done = F.col("seal").between(F.lit(1), F.col("done_seal"))
    for name in BRANCH_COLUMNS:
        is_done = is_done & F.col(name).eqNullSafe(F.col(columns[name]))
    return frame.join(F.broadcast(passed), is_done, "left_anti")


def _identity(options: ReplayOptions) -> str:
    changes = options.changes
    return digest(
        {
            "selection": options.selection.to_json(),
            "to": str(options.to),
            "exchange": options.exchange,
            "map": options.map_sources,
            "changes": [dict(changes.set_headers), list(changes.drop_headers), list(changes.drop_properties)],
        }
    )


def _dry_run(options: ReplayOptions, frame: DataFrame, values: Mapping[str, Any]) -> Summary:
    route = ("exchange", "routing_key")
    keys = with_mapped_keys(frame.groupBy(*route).agg(F.count("*").alias("messages")), options.key_map)
    keys = keys.groupBy(*route).agg(F.sum("messages").alias("messages"))
    row = frame.agg(
        F.sum(F.octet_length("body")).alias("bytes"), F.min("ts").alias("first"), F.max("ts").alias("last")
    ).collect()[0]
    top = [found.asDict() for found in keys.orderBy(F.desc("messages"), *route).limit(20).collect()]
    made = {
        **values,
        "published": 0,
        "bytes": row["bytes"] or 0,
        **{
            name: None if row[name] is None else row[name].astimezone(UTC).isoformat()  # Spark returns local time
            for name in ("first", "last")
        },
        "keys": keys.count(),
        "top": top,
    }
    lines = [f"would publish {made['messages']:,} messages, {made['bytes']:,} bytes, under {made['keys']:,} keys"]
    lines += [f"  {each['exchange']} {each['routing_key']}  {each['messages']:,}" for each in top]
    return Summary(made, OK, tuple(lines))
