"""One topic index in a process of its own: answers requests, one line of JSON each, until its input ends.

The parent process chooses the package of the broker, interpreted or compiled, by PYTHONPATH.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.topics import workload
from bench.topics.published_engines import make_engine
from broker.compiled import build_kind
from broker.routing.cache import CacheLimits
from broker.routing.index import TopicIndex
from broker.routing.topic_exchange import TopicExchange

Figures = dict[str, Any]
Match = Callable[[str], object]
_FIRST_KEYS = 2


@dataclass(slots=True)
class Runner:
    """Matches keys in batches, and starts over at their end."""

    match: Match
    keys: Sequence[str]
    at: int = 0
    batch: int = _FIRST_KEYS

    def lap(self) -> float:
        """Match the next batch of keys and return the CPU seconds that it took."""
        if self.at + self.batch > len(self.keys):
            self.at = 0
        batch = self.keys[self.at : self.at + self.batch]
        self.at += len(batch)
        match = self.match
        begun = time.process_time()
        for key in batch:
            match(key)
        return time.process_time() - begun

    def settle(self, slice_s: float) -> None:
        """Set the size of a batch so that it takes about `slice_s`."""
        while True:
            took_s = self.lap()
            if took_s > slice_s / 4 or self.batch >= len(self.keys):
                break
            self.batch = min(len(self.keys), self.batch * 2)
        share = slice_s / took_s if took_s else 1.0
        self.batch = max(1, min(len(self.keys), int(self.batch * share)))


class Queue:
    """The destination of one pattern."""

    __slots__ = ()


class Cell:
    """The state of the process: the index that was built last, and a runner over its keys."""

    def __init__(self) -> None:
        self.engine: Any = None
        self.index = TopicIndex()
        self.queues: dict[str, Queue] = {}
        self.patterns: list[str] = []
        self.runner = Runner(self.index.match, [])

    def build(self, engine: str, patterns: str, keys: str) -> Figures:
        """Fill an index with the patterns of a file, each with its own destination; keep the keys of another file."""
        self.patterns = Path(patterns).read_text().split()
        self._renew(engine, self.patterns)
        gc.collect()
        before = _rss_bytes()
        begun = time.process_time()
        for text in self.patterns:
            self._add(text)
        took_s = time.process_time() - begun
        gc.collect()
        grown = _rss_bytes() - before
        assert self.index.size == len(self.patterns)
        self.runner = Runner(self.index.match, Path(keys).read_text().split())
        return {"form": build_kind(), "patterns": len(self.patterns), "build_s": took_s, "rss_bytes": grown}

    def settle(self, slice_s: float) -> Figures:
        """Calibrate the runner, and return the hits and steps per match of the last keys."""
        self.runner.settle(slice_s)
        sample = self.runner.keys[-2000 if self.runner.batch > 100 else -20 :]
        before = self.engine.visited
        hits = sum(len(self.index.match(key)) for key in sample)
        return {"hits": hits / len(sample), "visited": (self.engine.visited - before) / len(sample)}

    def lap(self) -> Figures:
        took_s = self.runner.lap()
        return {"us": took_s / self.runner.batch * 1e6, "keys": self.runner.batch}

    def footprint(self) -> Figures:
        """Measure the memory of the index without the destinations."""
        return {"footprint_bytes": self.index.footprint_bytes(Queue), "counts": dict(self.index.counts())}

    def change(self, count: int, bound_s: float) -> Figures:
        """Remove up to a tenth of the patterns and add them again, repeatedly, so that the index keeps its size.

        The mean is of whole passes, the worst of single calls. Units: both include parsing the binding key.
        """
        size = len(self.patterns)
        least = max(1, min(count, size // 10))
        chosen = [self.patterns[at] for at in range(0, size, size // least)][:least]
        begun = time.process_time()
        self._remove(chosen[0])
        self._add(chosen[0])
        alone_s = time.process_time() - begun
        chosen = chosen[: max(1, int(bound_s / max(alone_s, 1e-7)))]
        removals_us, additions_us = [], []
        gc.collect()
        for _ in range(max(1, count // len(chosen)) if len(chosen) == least else 1):
            removals_us.append(_mean_us(self._remove, chosen))
            additions_us.append(_mean_us(self._add, chosen))
        gc.collect()
        return {
            "changes": len(chosen) * len(removals_us),
            "remove_us": median(removals_us),
            "add_us": median(additions_us),
            "remove_worst_us": max(_each_us(self._remove, chosen)),
            "add_worst_us": max(_each_us(self._add, chosen)),
        }

    def storm(self, engine: str, family: str, patterns: int, matches: int, bound_s: float) -> Figures:
        """Match the keys of a hostile family one by one."""
        texts, keys = workload.hostile_families(patterns)[family]
        self._renew(engine, texts)
        for text in texts:
            self._add(text)
        gc.collect()
        visited, most, hits = self.engine.visited, 0, 0
        times_us: list[float] = []
        end_at = time.process_time() + bound_s
        while len(times_us) < matches and time.process_time() < end_at:
            key = keys[len(times_us) % len(keys)]
            begun = time.process_time_ns()
            found = self.index.match(key)
            times_us.append((time.process_time_ns() - begun) / 1000)
            hits += len(found)
            most, visited = max(most, self.engine.visited - visited), self.engine.visited
        times_us.sort()
        count = len(times_us)
        return {
            "patterns": self.index.size,
            "matches": count,
            "median_us": times_us[count // 2],
            "p99_us": times_us[min(count - 1, count * 99 // 100)],
            "worst_us": times_us[-1],
            "visited_most": most,
            "hits": hits / count,
        }

    def cache(self, patterns: str, keys: str, recurring: int, rounds: int) -> Figures:
        """Measure the route cache of an exchange: with recurring keys, and with many keys that each occur once."""
        exchange = TopicExchange("bench", cache_limits=CacheLimits())
        bare = TopicExchange("bare", cache_limits=CacheLimits(entries=0))
        for number, line in enumerate(Path(patterns).read_text().split()):
            exchange.bind(f"q{number}", line, {})
            bare.bind(f"q{number}", line, {})
        every = Path(keys).read_text().split()
        again = every[:recurring]
        for _ in range(3):
            _mean_us(exchange.route, again)
        gc.collect()
        hit_us = [_mean_us(exchange.route, again) for _ in range(rounds * 3)]
        cached = exchange.cache.entries
        assert all(key in cached and cached[key].live for key in again), "not every route was a hit"
        empty_us = [_mean_us(_nothing, again) for _ in range(rounds * 3)]
        exchange.cache.drop_all()
        thrash, uncached = [], []
        slice_keys = max(1, len(every) // 100)
        for number, at in enumerate(range(0, len(every), slice_keys)):
            batch = every[at : at + slice_keys]
            thrash.append(_mean_us(exchange.route, batch))
            if number % 5 == 0:
                uncached.append(_mean_us(bare.route, batch))
        return {
            "hit_us": median(hit_us),
            "empty_call_us": median(empty_us),
            "thrash_us": median(thrash),
            "uncached_us": median(uncached),
            "distinct_keys": len(every),
            "entries_after": len(exchange.cache.entries),
            "bytes_after": exchange.cache.used_bytes,
            "bypassed_after": exchange.cache.bypassed,
        }

    def _renew(self, engine: str, patterns: list[str]) -> None:
        self.queues = {text: Queue() for text in patterns}
        self.engine = make_engine(engine)
        self.index = TopicIndex(self.engine)

    def _add(self, text: str) -> None:
        index = self.index
        index.add(index.parse(text), self.queues[text])

    def _remove(self, text: str) -> None:
        index = self.index
        index.remove(index.parse(text), self.queues[text])


def _nothing(_key: str) -> None:
    """Do nothing, to measure the cost of a call."""


def _mean_us(do: Callable[[str], object], texts: list[str]) -> float:
    begun = time.process_time()
    for text in texts:
        do(text)
    return (time.process_time() - begun) / len(texts) * 1e6


def _each_us(do: Callable[[str], object], texts: list[str]) -> list[float]:
    times_us = []
    for text in texts:
        begun = time.process_time_ns()
        do(text)
        times_us.append((time.process_time_ns() - begun) / 1000)
    return times_us


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    """Serve until the input ends. The first argument bounds the memory, in bytes."""
    bound = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    cell = Cell()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(cell, request.pop("do"))(**request)
        except MemoryError:
            answer = {"error": f"more than {bound >> 20} MiB"}
        except Exception as error:  # noqa: BLE001 - the parent reports it, and sends the next request
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
