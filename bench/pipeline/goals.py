"""Judges a run by its goals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bench.pipeline import archiving, commanding, querying, routing

ARCHIVE_ROWS_PER_S = 600_000
ARCHIVE_CPU_S = 1.5
SQL_ROWS_PER_S = 600_000
ROUTE_CPU_S = 1.5
LATENCY_RATIO = 2.0
REPLAY_RATIO = 1.0
QUERY_WARM_S = 2.0
ARCHIVE_WARM_S = 4.0
COLD_OVER_START_S = 3.0
GROWTH_RATIO = 1.5
"""The limit of the cost per message at the largest size, relative to 10^6, where the fixed cost of a job is small."""
_FLAT_FROM = 1_000_000


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure, its goal, and its measured value."""

    what: str
    wanted: str
    found: str
    reached: bool

    def __str__(self) -> str:
        return (
            f"{'reached    ' if self.reached else 'NOT reached'}  {self.what}: {self.found} (to reach: {self.wanted})"
        )


def goals(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every goal that a run has figures for."""
    return [asdict(goal) | {"text": str(goal)} for goal in _goals(parts)]


def _goals(parts: Mapping[str, Any]) -> Iterator[Goal]:
    if "commands" in parts:
        query, archive = (
            {row["name"]: row["wall_s"] for row in parts["commands"][job]} for job in ("query", "archive")
        )
        start_s = query[commanding.SPARK_START]
        yield _at_most("warm query over 1,000,000 rows, s", query[commanding.WARM], QUERY_WARM_S)
        yield _at_most("warm archive of 300,000 messages, s", archive[commanding.WARM], ARCHIVE_WARM_S)
        yield _at_most("cold query, s over Spark's own start", query[commanding.COLD] - start_s, COLD_OVER_START_S)
        yield _at_most("cold archive, s over Spark's own start", archive[commanding.COLD] - start_s, COLD_OVER_START_S)
    if "archive" in parts:
        found = _contestant(parts["archive"], archiving.ARCHIVE)
        yield _at_least("archive, rows/s", found["rows_per_s"], ARCHIVE_ROWS_PER_S)
        yield _at_most("archive, CPU-s per million", found["cpu_s_per_million"], ARCHIVE_CPU_S)
    if "sql" in parts:
        found = _contestant(parts["sql"], querying.SLOTS)
        yield _at_least("SQL over live slots, rows/s", found["rows_per_s"], SQL_ROWS_PER_S)
    if "route" in parts:
        found = _contestant(parts["route"], routing.ROUTE)
        what = f"route, {parts['route']['patterns']:,} patterns, CPU-s per million"
        yield _at_most(what, found["cpu_s_per_million"], ROUTE_CPU_S)
    if "replay" in parts:
        yield _at_least("replay beside a plain publisher, rate", parts["replay"]["ratio"], REPLAY_RATIO)
    if "latency" in parts:
        yield _at_most("p99 while an archive follows, times that without", parts["latency"]["ratio"], LATENCY_RATIO)
    if "growth" in parts:
        yield from _growth(parts["growth"]["sizes"])


def _growth(sizes: list[dict[str, Any]]) -> Iterator[Goal]:
    flat = [size for size in sizes if size["rows"] >= _FLAT_FROM]
    if len(flat) < 2:
        return
    first, last = flat[0], flat[-1]
    for job in ("archive", "route"):
        ratio = (last[f"{job}_cpu_s"] / last["rows"]) / (first[f"{job}_cpu_s"] / first["rows"])
        yield _at_most(
            f"{job}, CPU-s per message at {last['rows']:,}, times that at {first['rows']:,}", ratio, GROWTH_RATIO
        )


def _contestant(part: Mapping[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in part["contestants"] if one["name"] == name)


def _at_least(what: str, found: float, wanted: float) -> Goal:
    return Goal(what, f"at least {_digits(wanted)}", _digits(found), found >= wanted)


def _at_most(what: str, found: float, wanted: float) -> Goal:
    return Goal(what, f"at most {_digits(wanted)}", _digits(found), found <= wanted)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
