"""Measures the workload of RabbitMQ's second article: a million topics, and growth by patterns and messages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.topics import article, workload
from bench.topics.race import race
from bench.topics.stage import Stage
from broker.routing.engine_names import ENGINES, make_engine
from broker.routing.engines.dfa import DfaLimits, LazyDfa
from broker.routing.footprint import footprint_bytes
from broker.routing.pattern import parse_pattern

LIFTED = "dfa, no bound"
TENTH = "dfa, a tenth of its bounds"
_BOUNDS = DfaLimits()
_LIMITS = {
    LIFTED: DfaLimits(states=1 << 62, transitions=1 << 62, places=1 << 62),
    TENTH: DfaLimits(_BOUNDS.states // 10, _BOUNDS.transitions // 10, _BOUNDS.places // 10),
}
_GROUND = ("trie", "dfa", "tiered", "bitmap")
_NAIVE = ("conventional", "split-once")
_NAIVE_KEYS = 20
"""The naive engines match this many topics of each chunk; their time is scaled up to all topics."""
_WATCHED = ("trie", "dfa", LIFTED, TENTH)
_CHUNKS = 100
_LOOKS = 7


@dataclass(slots=True)
class Walker:
    """One engine's progress through the topics. Units: `bytes_at` is by matched topics."""

    engine: Any
    share: float = 1.0
    cpu_s: float = 0.0
    topics: int = 0
    hits: int = 0
    stopped: str = ""
    bytes_at: dict[int, int] = field(default_factory=dict)

    def walk(self, topics: Sequence[str]) -> None:
        """Match the topics, or this engine's share of them."""
        chosen = topics[: max(1, int(len(topics) * self.share))]
        match = self.engine.match
        hits = 0
        begun = time.process_time()
        for topic in chosen:
            hits += len(match(topic))
        self.cpu_s += time.process_time() - begun
        self.hits += hits
        self.topics += len(chosen)


def build(name: str, patterns: Sequence[str]) -> Any:
    """Return an engine that holds the patterns."""
    engine: Any = LazyDfa(limits=_LIMITS[name]) if name in _LIMITS else make_engine(name)
    for text in patterns:
        engine.add(parse_pattern(text), True)
    return engine


def measure(stage: Stage) -> dict[str, Any]:
    """Return all figures of that article, measured here."""
    million = _million(stage)
    return {
        "million": million,
        "patterns": _over(stage, stage.plan.blog_sizes, (*_GROUND, "split-once")),
        "bindings": _over(stage, stage.plan.binding_sizes, (*_NAIVE, "trie", "tiered", "bitmap")),
        "articles": [article.RABBIT_2],
    }


def _million(stage: Stage) -> dict[str, Any]:
    plan = stage.plan
    patterns = workload.patterns(plan.blog_patterns)
    topics = workload.keys(plan.blog_topics)
    names = [name for name in (*_GROUND, *_NAIVE) if name in ENGINES] + list(_LIMITS)
    walkers = {name: Walker(build(name, patterns)) for name in names}
    chunk = max(1, len(topics) // _CHUNKS)
    for name in _NAIVE:
        walkers[name].share = min(1.0, _NAIVE_KEYS / chunk)
    looks = {chunk * step for step in (0, 1, 3, 10, 25, 50, _CHUNKS)}
    for done in range(0, len(topics) + 1, chunk):
        if done in looks:
            _look(walkers, done, plan.dfa_bound_bytes)
        for walker in walkers.values():
            if not walker.stopped and done < len(topics):
                walker.walk(topics[done : done + chunk])
    rows = []
    for name, walker in walkers.items():
        us = walker.cpu_s / walker.topics * 1e6
        row = {
            "engine": name,
            "us": us,
            "million_s": us,
            "topics": walker.topics,
            "hits": walker.hits / walker.topics,
            "stopped": walker.stopped,
            "bytes_at": walker.bytes_at,
            "counts": dict(walker.engine.counts()),
        }
        rows.append(row)
        grown = f", {max(walker.bytes_at.values()) / 1e6:.1f} MB at last" if walker.bytes_at else ""
        stage.tell(f"blog: {name:14} {us:8.2f} s for 1,000,000 topics ({walker.topics:,} matched){grown}")
    return {"patterns": len(patterns), "topics": len(topics), "rows": rows}


def _look(walkers: dict[str, Walker], done: int, bound_bytes: int) -> None:
    """Measure the memory of the watched engines, and stop those that use too much."""
    for name in _WATCHED:
        walker = walkers.get(name)
        if walker is not None and not walker.stopped:
            size = footprint_bytes(walker.engine)
            walker.bytes_at[done] = size
            if size > bound_bytes:
                walker.stopped = f"more than {bound_bytes >> 20} MiB after {done:,} topics"


def _over(stage: Stage, sizes: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
    """Return microseconds per topic over numbers of patterns."""
    plan = stage.plan
    topics = workload.keys(min(plan.blog_topics, 300_000), seed=7)
    rows = []
    for size in sizes:
        patterns = workload.patterns(size)
        engines = {name: build(name, patterns) for name in names if name in ENGINES}
        runners = race({name: one.match for name, one in engines.items()}, topics, plan.rounds, plan.blog_slice_s)
        us = {name: runner.us for name, runner in runners.items()}
        rows.append(
            {"size": size, "us": us, "topics": {name: one.batch * plan.rounds for name, one in runners.items()}}
        )
        stage.tell(f"blog: {size:6,} patterns, us: " + ", ".join(f"{name} {value:.2f}" for name, value in us.items()))
    return {"rows": rows}
