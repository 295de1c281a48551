"""`slotmq pipeline synth`: makes a workload of a lake's traffic, and messages of a workload."""

from __future__ import annotations

import argparse
import json
import math
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.cli.parser import BadUsage, add_command
from broker.pipeline.faults import LakeRefused
from broker.pipeline.job import (
    BAD_RECORDS,
    OK,
    USAGE,
    JobFailed,
    Progress,
    Summary,
    add_spark,
    carry_out,
    path_argument,
    spark_of,
)
from broker.pipeline.jobs.replay import publish_frame
from broker.pipeline.replay.replay_plan import digest
from broker.pipeline.replay.republish import Publishing, check_reachable
from broker.pipeline.routes.bindings_file import BadBindings, read_bindings
from broker.pipeline.sink.amqp_address import AmqpAddress, BadAddress
from broker.pipeline.sink.amqp_publisher import PublisherOptions
from broker.pipeline.source.selection import Selection, add_selection, selection_of
from broker.pipeline.spark.tasks import tasks_at_once
from broker.pipeline.synth.anonymiser import Anonymiser
from broker.pipeline.synth.workload import BadWorkload, Workload

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from broker.pipeline.synth.message_sampler import Drawing

__all__ = ["CollectOptions", "GenerateOptions", "add_synth", "collect", "generate", "synthetic_frame"]

STEP_ROWS: Final = 250_000  # published between two words of progress
FILE_ROWS: Final = 1_000_000
QUEUE: Final = "synth"


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """Which messages, and where the workload goes; with a `salt` it is anonymous."""

    spark: Callable[[], SparkSession]
    selection: Selection
    output: Path
    salt: bytes | None = None
    bindings: Path | None = None


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """How many messages of which workload, and where they go: to a broker, Parquet or a lake, one of them."""

    spark: Callable[[], SparkSession]
    workload: Path
    messages: int
    seed: int = 0
    to: AmqpAddress | None = None
    parquet: Path | None = None
    lake: Path | None = None
    exchange: str | None = None
    rate: float = 0.0


def add_synth(commands: Any) -> None:
    """Add the command."""
    command = add_command(
        commands, "synth", "make a workload with the statistics of a lake's traffic, or messages of one"
    )
    command.add_argument("-o", "--output", metavar="FILE", type=path_argument, help="write the workload of --lake here")
    command.add_argument("--anonymise", action="store_true", help="with tokens for words, the same for the same word")
    command.add_argument("--salt", metavar="S", help="what the tokens depend on; default another one each time")
    command.add_argument(
        "--bindings", metavar="FILE", type=path_argument, help="bindings to put into the workload, anonymised alike"
    )
    command.add_argument("--generate", metavar="N", type=int, help="make so many messages of --workload")
    command.add_argument("--workload", metavar="FILE", type=path_argument, help="what an earlier run wrote")
    command.add_argument(
        "--seed", metavar="S", type=int, default=0, help="the same messages for the same seed; default 0"
    )
    command.add_argument("--to", metavar="URL", help="publish them: amqp://user:password@host:port/vhost")
    command.add_argument("--exchange", metavar="X", help="to this exchange; default those of the workload")
    command.add_argument("--rate", metavar="N", type=float, default=0.0, help="messages per second")
    command.add_argument(
        "--parquet", metavar="DIR", type=path_argument, help="write them as Parquet; --lake adds them to a lake"
    )
    add_selection(command, required=False)
    add_spark(command)
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.generate is None:
        if arguments.lake is None or arguments.output is None:
            raise BadUsage("say --lake DIR -o FILE for a workload, or --workload FILE --generate N for messages")
        if any(
            given is not None for given in (arguments.workload, arguments.to, arguments.parquet, arguments.exchange)
        ):
            raise BadUsage("--workload, --to, --parquet and --exchange belong to --generate")
        if arguments.output.is_dir() or not arguments.output.absolute().parent.is_dir():
            raise BadUsage(f"{arguments.output} can be no file: it is a folder, or in none")
        options = CollectOptions(
            lambda: spark_of(arguments, "slotmq-synth"),
            selection_of(arguments),
            arguments.output,
            _salt(arguments),
            arguments.bindings,
        )
        return carry_out(arguments, "synth", lambda progress: collect(options, progress))
    chosen = [given for given in (arguments.to, arguments.parquet, arguments.lake) if given is not None]
    if arguments.workload is None or len(chosen) != 1:
        raise BadUsage("--generate needs --workload FILE and one of --to URL, --parquet DIR, --lake DIR")
    if arguments.output is not None or arguments.anonymise or arguments.bindings is not None:
        raise BadUsage("-o, --anonymise and --bindings are for a workload, without --generate")
    if arguments.generate < 1 or not 0 <= arguments.rate < math.inf:
        raise BadUsage("--generate is at least 1, and --rate above 0")
    if arguments.parquet is not None and arguments.parquet.exists():
        raise BadUsage(f"{arguments.parquet} is there already")
    try:
        Workload.read(arguments.workload)
        to = None if arguments.to is None else AmqpAddress.parse(arguments.to)
    except (BadWorkload, BadAddress) as bad:
        raise BadUsage(str(bad)) from None
    making = GenerateOptions(
        lambda: spark_of(arguments, "slotmq-synth"),
        arguments.workload,
        arguments.generate,
        arguments.seed,
        to,
        arguments.parquet,
        arguments.lake,
        arguments.exchange,
        arguments.rate,
    )
    return carry_out(arguments, "synth", lambda progress: generate(making, progress))


def _salt(arguments: argparse.Namespace) -> bytes | None:
    if not arguments.anonymise:
        if arguments.salt is not None:
            raise BadUsage("--salt belongs to --anonymise")
        return None
    return secrets.token_bytes(16) if arguments.salt is None else arguments.salt.encode()


def collect(options: CollectOptions, progress: Progress) -> Summary:
    """Write the workload of a selection. Raises: JobFailed."""
    from broker.pipeline.synth.traffic import collect_workload

    bindings: list[dict[str, Any]] = []
    if options.bindings is not None:
        try:
            topology = read_bindings(options.bindings)
        except BadBindings as bad:
            raise JobFailed(str(bad), USAGE) from None
        types = {(entry.vhost, entry.name): entry.type for entry in topology.exchanges}
        bindings = [
            {
                "vhost": each.vhost,
                "exchange": each.exchange,
                "type": types[each.vhost, each.exchange],
                "pattern": each.key,
                "queue": each.destination,
                "destination_type": "exchange" if each.to_exchange else "queue",
            }
            for each in topology.bindings
        ]
    options.selection.open()  # no lake, no Spark
    progress.step("starting Spark")
    spark = options.spark()
    progress.step("collecting")
    workload = collect_workload(options.selection.messages(spark), bindings)
    if workload is None:
        raise JobFailed("there are no messages to make a workload of")
    if options.salt is not None:
        workload = workload.anonymised(Anonymiser(options.salt))
    progress.add(rows=workload.messages)
    try:
        options.output.write_text(workload.to_json(), encoding="utf-8")
    except OSError as error:
        raise JobFailed(f"{options.output}: cannot be written: {error.strerror}", USAGE) from None
    return Summary(
        {
            "messages": workload.messages,
            "exchanges": len(workload.sources),
            "key_nodes": sum(source.keys.nodes for source in workload.sources),
            "mean_per_minute": workload.rate.mean_per_minute,
            "burst_factor": workload.rate.burst_factor,
            "headers": len(workload.headers),
            "anonymous": workload.anonymous,
            "workload": str(options.output),
        }
    )


def generate(options: GenerateOptions, progress: Progress) -> Summary:
    """Make messages. Raises: JobFailed."""
    from broker.pipeline.synth.message_sampler import Drawing

    try:
        workload = Workload.read(options.workload)
    except BadWorkload as bad:
        raise JobFailed(str(bad), USAGE) from None
    text = workload.to_json()
    drawing = Drawing(options.messages, options.seed, QUEUE)
    name = digest({"workload": text, "drawing": asdict(drawing)})
    if options.to is not None:
        check_reachable(options.to)
    progress.step("starting Spark")
    spark = options.spark()
    progress.step("making messages")
    values: dict[str, Any] = {"messages": options.messages, "seed": options.seed}
    if options.parquet is not None:
        synthetic_frame(spark, text, drawing).write.parquet(str(options.parquet))
        progress.add(rows=options.messages)
        return Summary({**values, "parquet": str(options.parquet)})
    if options.lake is not None:
        values |= {"lake": str(options.lake), "added": _to_lake(spark, text, drawing, options.lake, name)}
        progress.add(rows=options.messages)
        return Summary(values)
    assert options.to is not None, "who made the options chose a target"
    folder = options.workload.with_name(f"{options.workload.name}.unroutable")
    producer = f"synth-{digest({'messages': name, 'to': str(options.to), 'exchange': options.exchange})}"
    how = Publishing(
        address=options.to,
        options=PublisherOptions(producer=producer, rate=options.rate),
        refused=str(folder),
        exchange=options.exchange,
    )
    shutil.rmtree(folder, ignore_errors=True)  # what an earlier run could not publish is tried again
    refused = _publish(spark, text, drawing, how, progress)
    values |= {"to": str(options.to), "published": options.messages - refused, "refused": refused}
    if refused:
        values["refused_rows"] = str(folder)
    return Summary(values, BAD_RECORDS if refused else OK)


def synthetic_frame(spark: SparkSession, workload: str, drawing: Drawing, blocks: range | None = None) -> DataFrame:
    """Return the messages of a workload's text as a frame; the same whatever its partitions are."""
    from broker.pipeline.source.schema import SPARK_DDL
    from broker.pipeline.synth.message_sampler import sampler_of

    if blocks is None:
        blocks = range(sampler_of(workload, drawing).blocks)

    def draw(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from sampler_of(workload, drawing).rows(batch.column(0).to_pylist())

    parts = min(len(blocks), 4 * tasks_at_once(spark))
    return spark.range(blocks.start, blocks.stop, 1, max(1, parts)).mapInArrow(draw, SPARK_DDL)


def _publish(spark: SparkSession, text: str, drawing: Drawing, how: Publishing, progress: Progress) -> int:
    from broker.pipeline.synth.message_sampler import sampler_of

    sampler = sampler_of(text, drawing)
    rows = STEP_ROWS if not how.options.rate else min(STEP_ROWS, int(how.options.rate * 10))
    each = max(1, rows // sampler.block_rows)
    refused = 0
    for first in range(0, sampler.blocks, each):
        blocks = range(first, min(first + each, sampler.blocks))
        done = publish_frame(synthetic_frame(spark, text, drawing, blocks), how, batch=first)
        progress.add(rows=done["published"], bytes_=done["bytes"])
        refused += done["refused"]
    return refused


def _to_lake(spark: SparkSession, text: str, drawing: Drawing, path: Path, name: str) -> bool:
    """Add the messages to a lake and return whether they are new to it; they never enter the JVM."""
    from broker.pipeline.lake import Lake
    from broker.pipeline.lake.entry import Entry, LakeFile, SealRange
    from broker.pipeline.lake.manifest import now_ms
    from broker.pipeline.sink.row_files import RowFiles
    from broker.pipeline.synth.message_sampler import SLOT_ROWS, sampler_of

    try:
        lake = Lake(path, create=True)
    except LakeRefused as refused:
        raise JobFailed(str(refused), USAGE) from None
    query = f"synth-{name}"
    sampler = sampler_of(text, drawing)
    folder = lake.path

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with RowFiles(folder, query) as files:
            for batch in batches:
                for rows in sampler_of(text, drawing).rows(batch.column(0).to_pylist()):
                    files.add(rows)
            made = files.finish()
        yield pa.RecordBatch.from_pydict({"file": [json.dumps(file.to_json()) for file in made]})

    parallelism = tasks_at_once(spark)
    parts = min(sampler.blocks, max(parallelism, -(-drawing.messages // FILE_ROWS)))
    found = spark.range(0, sampler.blocks, 1, max(1, parts)).mapInArrow(write, "file string").collect()
    seals = ((1, -(-drawing.messages // SLOT_ROWS)),)
    vhosts = sorted({source.vhost for source in Workload.from_json(text).sources})
    entry = Entry(
        query,
        0,
        now_ms(),
        add=tuple(LakeFile.from_json(json.loads(row["file"])) for row in found),
        sealed=tuple(SealRange(name * 2, vhost, drawing.queue, seals) for vhost in vhosts),
        rows=drawing.messages,
    )
    return lake.message_table.commit(entry)
