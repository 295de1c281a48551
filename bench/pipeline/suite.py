"""The pipeline's jobs and commands, beside Spark's own Parquet reader and writer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

from bench.picture import BLUE, ORANGE, PALE, bars, horizontal_bars, plain
from bench.pipeline import commands, jobs
from bench.pipeline.commands import ARCHIVE_ROWS, FOLLOWED, QUERY_ROWS, QUIET, SPARK_START, WARM
from bench.pipeline.ground import Ground
from bench.run import Run
from bench.stage import extent
from bench.suites import Suite
from bench.tables import Column, Goal, goals_table, rows_table, size
from broker.figures.numerals import count_text, duration_text

_PEERS: Final = ("Spark", "SQL over Parquet", "a plain")
_JOBS: Final = ("archive", "sql", "route", "replay")


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes and rounds of each part.

    Units: bodies have `body_bytes`; a slot file has `slot_rows` messages; `latency_rate` is messages per second.
    """

    rows: int = extent(2_000_000, 200_000)
    slot_rows: int = 50_000
    keys: int = extent(20_000, 5000)
    body_bytes: int = 100
    rounds: int = extent(5, 2)
    patterns: int = extent(10_000, 1000)
    replay_rows: int = extent(200_000, 20_000)
    replay_rounds: int = extent(3, 1)
    latency_rate: int = 1000
    latency_slice_s: float = extent(10.0, 3.0)
    latency_rounds: int = extent(4, 1)
    driver_memory: str = "1g"
    command_rounds: int = extent(3, 1)


def goals(run: Run) -> Iterator[Goal]:
    """Yield every goal that a run has figures for; small sizes, which measure the fixed cost of a job, have none."""
    if run.facts["quick"]:
        return
    for job, rows, wanted_s in (("query", QUERY_ROWS, 2.0), ("archive", ARCHIVE_ROWS, 4.0)):
        warm, cold = (run.row("commands", name=f"{kind} {job}")["wall_s"] for kind in (WARM, commands.COLD))
        yield from Goal.at_most(f"warm {job} of {rows:,}, s", warm, wanted_s)
        start_s = run.row("commands", name=SPARK_START)["wall_s"]
        if cold and start_s:
            yield from Goal.at_most(f"cold {job}, s over Spark's own start", cold - start_s, 3.0)
    for part, name in (("archive", jobs.ARCHIVE), ("sql", jobs.SLOTS)):
        if run.row(part, name=name).runs:
            yield from Goal.at_least(f"{name}, rows/s", _best(run, part, name), 600_000, count_text)
    for part, name in (("archive", jobs.ARCHIVE), ("route", jobs.ROUTE)):
        found = run.row(part, name=name)["cpu_s_per_million"]
        yield from Goal.at_most(f"{name}, CPU-s per million", found, 1.5)
    if run.rows("replay"):
        ratio = _best(run, "replay", jobs.REPLAY) / _best(run, "replay", jobs.PLAIN)
        yield from Goal.at_least("replay, times a plain publisher's rate", ratio, 1.0)
    quiet, followed = (run.row("latency", name=name)["p99_us"] for name in (QUIET, FOLLOWED))
    if quiet and followed:
        yield from Goal.at_most("p99 while an archive follows, times that without", followed / quiet, 2.0)


def _best(run: Run, part: str, name: str) -> float:
    """Return the rate of a contestant's best lap, which other programs on the machine disturbed least."""
    return run.row(part, name=name).spread("rows_per_s")[1]


_NAME: Final = Column("", "name", str)
_CONTESTANTS: Final = (
    _NAME,
    Column("rows/s, best lap", lambda row: count_text(row.spread("rows_per_s")[1])),
    Column("CPU-s per million", "cpu_s_per_million"),
    Column("peak memory", "peak_bytes", size),
)
_COMMANDS: Final = (_NAME, Column("s", "wall_s"), Column("CPU-s", "cpu_s"))
_LATENCY: Final = (_NAME, Column("p50", "p50_us", duration_text), Column("p99", "p99_us", duration_text))


def _draw(figure: Any, run: Run) -> bool:
    (rates, costs), (latency, unused) = figure.subplots(2, 2, height_ratios=(3, 2))
    unused.set_axis_off()
    rows = run.rows(*_JOBS)
    colours = [ORANGE if str(row["name"]).startswith(_PEERS) else BLUE for row in rows]
    best = {row["name"]: row.spread("rows_per_s")[1] for row in rows}
    horizontal_bars(rates, best, colours, "rows per second, best lap (more is better)")
    spent = {row["name"]: row["cpu_s_per_million"] for row in rows}
    horizontal_bars(costs, spent, colours, "CPU-s per million rows, median (less is better)")
    costs.set_yticklabels([])
    for axes in (rates, costs):
        axes.set_xscale("log")
    found = run.rows("latency")
    names = [row["name"] for row in found]
    for rank, (name, colour) in enumerate((("p50_us", PALE), ("p99_us", BLUE))):
        bars(latency, names, {row["name"]: row[name] / 1e3 for row in found}, rank, 2, name[:3], colour)
    plain(latency, "publisher to consumer, ms; p99 is to stay under twice", legend=True)
    return bool(rows)


SUITE: Final = Suite(
    name="pipeline",
    about=__doc__,
    parts={
        "commands": commands.commands,
        "archive": jobs.archive,
        "sql": jobs.sql,
        "route": jobs.route,
        "replay": jobs.replay,
        "latency": commands.latency,
    },
    plan=Plan(),
    limit_s=1800.0,
    tables={
        "contestants": rows_table(_JOBS, _CONTESTANTS),
        "commands": rows_table(["commands"], _COMMANDS),
        "latency": rows_table(["latency"], _LATENCY),
        "goals": lambda run: goals_table(goals(run)),
    },
    printed=("contestants", "commands", "latency", "goals"),
    mark="bench-pipeline",
    pictures={"pipeline": ((11, 8), _draw)},
    prepare=lambda stage: nullcontext(Ground(stage)),
)
