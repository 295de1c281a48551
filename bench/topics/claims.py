"""Measures the articles' claims: factor three by bitmaps at 1,000 subscriptions, factor three by splitting once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.topics import article, workload
from bench.topics.race import Match, race
from bench.topics.stage import Stage
from broker.routing.engine_names import ENGINES, make_engine
from broker.routing.pattern import parse_pattern

SEEN = "plain-bitmap, seen keys"
_SEEN_KEYS = 500


def engines(patterns: Sequence[str]) -> dict[str, Any]:
    """Return one engine of every kind, all holding the patterns."""
    made = {name: make_engine(name) for name in ENGINES}
    for text in patterns:
        pattern = parse_pattern(text)
        for engine in made.values():
            engine.add(pattern, text)
    return made


def ratios(us: Mapping[str, float]) -> dict[str, float]:
    """Return the ratio of the conventional matcher's time to each engine's."""
    return {name: us["conventional"] / value for name, value in us.items() if name != "conventional" and value}


def measure(stage: Stage) -> dict[str, Any]:
    """Return microseconds per match of every engine over numbers of subscriptions, and the ratios."""
    plan = stage.plan
    every = workload.keys(plan.claim_keys)
    seen = every[:_SEEN_KEYS]
    rows = []
    for size in plan.claim_sizes:
        made = engines(workload.patterns(size))
        contestants: dict[str, Match] = {name: engine.match for name, engine in made.items()}
        keys: dict[str, Sequence[str]] = dict.fromkeys(made, every)
        if "plain-bitmap" in made:
            warm = make_engine("plain-bitmap")
            for text in workload.patterns(size):
                warm.add(parse_pattern(text), text)
            for key in seen:
                warm.match(key)
            contestants[SEEN], keys[SEEN] = warm.match, seen
        runners = race(contestants, keys, plan.rounds, plan.claim_slice_s)
        us = {name: runner.us for name, runner in runners.items()}
        row: dict[str, Any] = {
            "size": size,
            "us": us,
            "ratios": ratios(us),
            "laps_us": {n: r.times_us for n, r in runners.items()},
        }
        rows.append(row)
        told = ", ".join(f"{name} {value:.1f}" for name, value in row["ratios"].items())
        stage.tell(f"claims: {size:6,} subscriptions, conventional {us['conventional']:9.1f} us; times faster: {told}")
    return {"rows": rows, "articles": [article.WSO2, article.RABBIT_1]}
