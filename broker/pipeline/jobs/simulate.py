"""`slotmq pipeline simulate`: simulate overlays of many sizes, one in each Spark task."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from broker.cli.parser import BadUsage, add_command, add_switch, add_value
from broker.figures.numerals import many
from broker.pipeline.job import Progress, Summary, add_spark, carry_out, options_of, path_argument, write_whole
from broker.pipeline.simulate.plan import (
    AGGREGATIONS,
    MESSAGES,
    SIMULATED_SCHEMA,
    TABLES,
    SimulationPlan,
    default_plans,
    product_plans,
)
from broker.pipeline.simulate.results import result_lines, result_sheet
from broker.pipeline.source.schema import ddl_of
from broker.pipeline.spark.tasks import frame_of

LISTS: Final = ("brokers", "subscriptions", "redundancy", "aggregation")
NUMBERS: Final = ("fan_out", "patterns", "patterns_max", "messages", "seed")
LIMITS: Final = {
    "brokers": (4, 20_000),
    "subscriptions": (0, 10**12),
    "redundancy": (1, 8),
    "fan_out": (2, 100),
    "patterns": (1, 10_000),
    "patterns_max": (0, 10**9),
    "messages": (2, 100_000),
    "seed": (0, 2**32 - 1),
}
MESSAGE_LEVEL_MAX: Final = 3_000
IDLE_SETTING: Final = "spark.python.worker.idleTimeoutSeconds"
FORMATS: Final = (".parquet", ".csv")
POLL_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """The plans to simulate, and the files for the results: `output` ends in one of FORMATS, and `plot` in .svg."""

    spark: Callable[[], SparkSession]
    plans: Sequence[SimulationPlan]
    output: Path | None = None
    plot: Path | None = None


def add_simulate(commands: Any) -> None:
    """Add the command."""
    command = add_command(commands, "simulate", "simulate overlays of many sizes with the broker's own code")
    size = command.add_argument_group("sizes", "Lists such as 100,1000,1e4; every combination is simulated.")
    add_value(size, "--brokers", "N,..", "brokers of the overlay", type=_numbers("brokers"))
    add_value(size, "--subscriptions", "N,..", "subscriptions of all clients together", type=_numbers("subscriptions"))
    add_value(size, "--redundancy", "N,..", "brokers of each inner tree node", type=_numbers("redundancy"))
    add_value(size, "--aggregation", "A,..", f"{', '.join(AGGREGATIONS)}: the overlay's setting", type=_aggregations)
    size.add_argument(
        "--level", choices=(TABLES, MESSAGES),
        help="tables (default): what brokers announce; messages: whole brokers with streams and a crash under load",
    )  # fmt: skip
    add_switch(size, "--full", "instead: the default sizes up to 10,000 brokers, for hours")
    each = command.add_argument_group("each overlay")
    plan = SimulationPlan()
    for name, text in (
        ("fan_out", "children of an inner tree node"),
        ("patterns", "distinct patterns that clients choose from"),
        ("patterns_max", "the overlay's setting: with more patterns a neighbour gets every message"),
        ("messages", "messages that are published"),
        ("seed", "another number draws other subscriptions and messages"),
    ):
        each.add_argument(
            f"--{name.replace('_', '-')}", metavar="N", type=_number(name), default=getattr(plan, name),
            help=f"{text} (default {getattr(plan, name):,})",
        )  # fmt: skip
    results = command.add_argument_group("results")
    results.add_argument("-o", "--output", metavar="FILE", type=path_argument, help="write results: .parquet or .csv")
    add_value(results, "--plot", "FILE", "draw the results as an SVG file", type=path_argument)
    add_spark(command)
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    for path, endings in ((arguments.output, FORMATS), (arguments.plot, (".svg",))):
        if path is None:
            continue
        if path.suffix not in endings:
            raise BadUsage(f"{path} should end in {' or '.join(endings)}")
        if not path.absolute().parent.is_dir():
            raise BadUsage(f"{path}: there is no such folder")
        if path.is_dir():
            raise BadUsage(f"{path} is a folder, and should be a file")
    plans = _plans(arguments)
    if any(plan.large for plan in plans) and all(name != IDLE_SETTING for name, _ in arguments.conf):
        arguments.conf = [*arguments.conf, (IDLE_SETTING, "0")]  # a task is silent until its simulation is done
    options = options_of(SimulateOptions, arguments, plans=plans)
    return carry_out(arguments, "simulate", lambda progress: run_simulate(options, progress))


def run_simulate(options: SimulateOptions, progress: Progress) -> Summary:
    """Simulate all plans, write the requested files, and return the rows. Raises: JobFailed."""
    progress.step("starting Spark")
    spark = options.spark()
    rows = simulate_plans(spark, options.plans, progress)
    values: dict[str, Any] = {"simulations": rows}
    if options.output is not None:
        table, as_csv = pa.Table.from_pylist(rows, schema=SIMULATED_SCHEMA), options.output.suffix == ".csv"
        write_whole(options.output, lambda path: pc.write_csv(table, path) if as_csv else pq.write_table(table, path))
        values["output"] = str(options.output)
    if options.plot is not None:
        write_whole(options.plot, lambda path: path.write_text(result_sheet(rows), encoding="utf-8"))
        values["plot"] = str(options.plot)
    return Summary(values, lines=tuple(result_lines(rows)))


def _plans(arguments: argparse.Namespace) -> list[SimulationPlan]:
    """Return the plans that the arguments request. Raises: BadUsage."""
    base = SimulationPlan(**{name: getattr(arguments, name) for name in NUMBERS})
    choices = {name: given for name in LISTS if (given := getattr(arguments, name)) is not None}
    if arguments.level is not None:
        choices["level"] = [arguments.level]
    if arguments.full and choices:
        raise BadUsage(f"--full has its own sizes: it and --{next(iter(choices))} exclude each other")
    plans = product_plans(base, choices) if choices else default_plans(base, full=arguments.full)
    for plan in plans:
        if plan.brokers < plan.redundancy + 2:
            raise BadUsage(
                f"{plan.brokers} brokers are too few: an inner tree node has {plan.redundancy}, leaves are two or more"
            )
        if plan.level == MESSAGES and plan.brokers > MESSAGE_LEVEL_MAX:
            raise BadUsage(f"--level messages simulates at most {MESSAGE_LEVEL_MAX:,} brokers")
    return plans


def _number(name: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        low, high = LIMITS[name]
        try:
            value = int(text) if "e" not in text.lower() else int(float(text))
        except (ValueError, OverflowError):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 1000 or 1e3") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not between {low:,} and {high:,}")
        return value

    return parse


def _numbers(name: str) -> Callable[[str], list[int]]:
    parse = _number(name)
    return lambda text: [parse(item) for item in text.split(",")]


def _aggregations(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in AGGREGATIONS:
            raise argparse.ArgumentTypeError(f"{name!r} is not {', '.join(AGGREGATIONS[:-1])} or {AGGREGATIONS[-1]}")
    return names


def simulate_plans(spark: SparkSession, plans: Sequence[SimulationPlan], progress: Progress) -> list[dict[str, Any]]:
    """Simulate each plan in its own task, and return the rows in the order of the plans."""
    with _progress_shown(spark, progress, f"of {many(len(plans), 'simulation')} done"):
        return [row.asDict() for row in frame_of(spark, _simulate, plans, ddl_of(SIMULATED_SCHEMA)).collect()]


@contextmanager
def _progress_shown(spark: SparkSession, progress: Progress, what: str) -> Iterator[None]:
    """Show the number of finished tasks within a context; a session over Connect cannot report it."""
    progress.step(f"0 {what}")
    if not hasattr(spark, "sparkContext"):
        yield
        return
    tracker, ended = spark.sparkContext.statusTracker(), threading.Event()

    def poll() -> None:
        while not ended.wait(POLL_S):
            stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
            progress.step(f"{sum(stage.numCompletedTasks for stage in stages if stage is not None)} {what}")

    thread = threading.Thread(target=poll, name="simulations", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _simulate(plan: SimulationPlan) -> Iterator[pa.RecordBatch]:
    from broker.pipeline.simulate.levels import MessageSimulation, TableSimulation

    began_s = time.process_time()
    row = (MessageSimulation if plan.level == MESSAGES else TableSimulation)(plan).run()
    row.cpu_s = time.process_time() - began_s
    yield pa.RecordBatch.from_pylist([row.to_json(plan)], schema=SIMULATED_SCHEMA)
