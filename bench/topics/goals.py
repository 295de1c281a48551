"""Judges the broker's default engine by the goals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.topics import article
from broker.routing.engine_names import CHOICES, ENGINES, default_engine, engine_name

_BYTES_AT = 100_000
AUTO_ENGINE = engine_name(default_engine())
CHOSEN = (*(name for name in CHOICES if name in ENGINES and name != AUTO_ENGINE), AUTO_ENGINE)
"""The engines that a broker may be configured to use, and its default."""
_FORCED = ("tiered", "bitmap", "trie", "dfa")


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure of the broker's default, its goal, and the best figure of any engine."""

    what: str
    wanted: str
    found: str
    best: str
    reached: bool

    @property
    def verdict(self) -> str:
        """Return whether the goal was reached, in words."""
        return "reached" if self.reached else "not reached"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One figure of one engine in one form."""

    engine: str
    form: str
    value: float


def goals(parts: dict[str, Any]) -> Iterator[Goal]:
    """Yield every goal that a run has figures for."""
    if "sizes" in parts:
        yield from _size_goals(parts["sizes"]["entries"])
    if "cache" in parts:
        rows = [Candidate(AUTO_ENGINE, row["form"], row["hit_us"]) for row in parts["cache"]["rows"]]
        yield from _goal("cached match", rows, article.TARGET_HIT_US, "us")
    if "hostile" in parts:
        rows_of = parts["hostile"]["rows"]
        for family in dict.fromkeys(row["family"] for row in rows_of):
            own = [row for row in rows_of if row["family"] == family and "p99_us" in row]
            candidates = [Candidate(row["engine"], row["form"], row["p99_us"]) for row in own]
            yield from _goal(f"p99 of hostile `{family}`", candidates, article.TARGET_HOSTILE_P99_US, "us")
    if "broker" in parts:
        yield from _broker_goals(parts["broker"]["medians"])


def _size_goals(entries: list[dict[str, Any]]) -> Iterator[Goal]:
    known = [entry for entry in entries if not entry["left_out"] and entry["engine"] in CHOSEN]

    def candidates(size: int, value: Callable[[dict[str, Any]], float]) -> list[Candidate]:
        return [Candidate(one["engine"], one["form"], value(one)) for one in known if one["size"] == size]

    for size, wanted in article.TARGET_MATCH_US.items():
        yield from _goal(
            f"uncached match at {size:,} patterns", candidates(size, lambda one: float(one["match_us"])), wanted, "us"
        )
    yield from _goal(
        f"memory per pattern at {_BYTES_AT:,}",
        candidates(_BYTES_AT, lambda one: float(one["bytes_per_pattern"])),
        article.TARGET_BYTES_PER_PATTERN,
        "B",
    )
    for size in article.TARGET_MATCH_US:
        slower = candidates(size, lambda one: float(max(one["figures"]["add_us"], one["figures"]["remove_us"])))
        yield from _goal(f"the slower of add and remove at {size:,} patterns", slower, article.TARGET_CHANGE_US, "us")


def _broker_goals(rows: list[dict[str, Any]]) -> Iterator[Goal]:
    for row in rows:
        if row["broker"] == "RabbitMQ":
            place = (row["bindings"], row["keys"])
            ours = [one for one in rows if (one["bindings"], one["keys"]) == place and one is not row]
            best = max(ours, key=lambda one: float(one["per_s"]))
            ratio = best["per_s"] / row["per_s"]
            what = f"messages/s beside RabbitMQ, {row['bindings']:,} bindings, {row['keys']}"
            wanted = f"{article.TARGET_BROKER_RATIO:g} times"
            form = best["broker"].removeprefix("SlotMQ, ")
            found = f"{ratio:.1f} times ({form})"
            yield Goal(what, wanted, found, f"{best['per_s']:,.0f}/s", ratio >= article.TARGET_BROKER_RATIO)


def _goal(what: str, candidates: Sequence[Candidate], wanted: float, unit: str) -> Iterator[Goal]:
    """Yield the goal, unless the broker's default was not measured."""
    own = [one for one in candidates if one.engine == AUTO_ENGINE]
    if own:
        found = min(own, key=lambda one: one.value)
        best = min(candidates, key=lambda one: one.value)
        yield Goal(
            what,
            f"{wanted:,g} {unit}",
            f"{_digits(found.value)} {unit} ({found.form})",
            f"{_digits(best.value)} {unit} ({best.engine}, {best.form})",
            found.value <= wanted,
        )


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
