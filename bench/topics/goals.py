"""Judges a kept run by what was to be reached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.topics import article

_BYTES_AT = 100_000
_FORCED = ("tiered", "bitmap", "trie", "dfa")


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure, what it was to be, and which engine came nearest."""

    what: str
    wanted: str
    found: str
    by: str
    reached: bool

    @property
    def verdict(self) -> str:
        """Return whether it was reached, in words."""
        return "reached" if self.reached else "not reached"


def goals(parts: dict[str, Any]) -> Iterator[Goal]:
    """Yield every goal that a run has figures for; of the engines that a broker may be told to use, the best."""
    if "sizes" in parts:
        yield from _size_goals(parts["sizes"]["entries"])
    if "cache" in parts:
        best = min(parts["cache"]["rows"], key=lambda row: float(row["hit_us"]))
        yield _goal("cached match", best["hit_us"], article.TARGET_HIT_US, "us", best["form"])
    if "hostile" in parts:
        yield from _hostile_goals(parts["hostile"]["rows"])
    if "broker" in parts:
        yield from _broker_goals(parts["broker"]["medians"])


def _size_goals(entries: list[dict[str, Any]]) -> Iterator[Goal]:
    known = [entry for entry in entries if not entry["left_out"] and entry["engine"] in _FORCED]
    for size, wanted in article.TARGET_MATCH_US.items():
        own = [entry for entry in known if entry["size"] == size]
        if own:
            best = min(own, key=lambda entry: float(entry["match_us"]))
            yield _goal(f"uncached match at {size:,} patterns", best["match_us"], wanted, "us", _name(best))
    own = [entry for entry in known if entry["size"] == _BYTES_AT]
    if own:
        best = min(own, key=lambda entry: float(entry["match_us"]))
        what = f"memory per pattern at {_BYTES_AT:,}, of the fastest there"
        yield _goal(what, best["bytes_per_pattern"], article.TARGET_BYTES_PER_PATTERN, "B", _name(best))
    for size in sorted({entry["size"] for entry in known}):
        best = min((entry for entry in known if entry["size"] == size), key=lambda entry: float(entry["match_us"]))
        for figure, what in (("add_us", "add"), ("remove_us", "remove")):
            value = best["figures"][figure]
            yield _goal(
                f"{what} at {size:,} patterns, of the fastest there", value, article.TARGET_CHANGE_US, "us", _name(best)
            )


def _hostile_goals(rows: list[dict[str, Any]]) -> Iterator[Goal]:
    for family in dict.fromkeys(row["family"] for row in rows):
        own = [row for row in rows if row["family"] == family and "p99_us" in row]
        if own:
            best = min(own, key=lambda row: float(row["p99_us"]))
            yield _goal(f"p99 of hostile `{family}`", best["p99_us"], article.TARGET_HOSTILE_P99_US, "us", _name(best))


def _broker_goals(rows: list[dict[str, Any]]) -> Iterator[Goal]:
    for row in rows:
        if row["broker"] == "RabbitMQ":
            place = (row["bindings"], row["keys"])
            ours = [one for one in rows if (one["bindings"], one["keys"]) == place and one is not row]
            best = max(ours, key=lambda one: float(one["per_s"]))
            ratio = best["per_s"] / row["per_s"]
            what = f"messages/s beside RabbitMQ, {row['bindings']:,} bindings, {row['keys']}"
            wanted = f"{article.TARGET_BROKER_RATIO:g} times"
            yield Goal(what, wanted, f"{ratio:.1f} times", best["broker"], ratio >= article.TARGET_BROKER_RATIO)


def _goal(what: str, value: float, wanted: float, unit: str, by: str) -> Goal:
    digits = f"{value:.2f}" if value < 10 else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
    return Goal(what, f"{wanted:,g} {unit}", f"{digits} {unit}", by, value <= wanted)


def _name(row: dict[str, Any]) -> str:
    return f"{row['engine']}, {row['form']}"
