"""Measures every engine of the topic index: matching, memory, changes, hostile patterns, the route cache."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.brokers import PROJECT
from bench.stage import EXPECTED, Stage
from bench.topics import workload
from bench.topics.published_engines import ENGINES, PUBLISHED
from broker.perf.faults import RunFailed
from broker.routing.index import AUTO, CHOICES, DEFAULT

CHOSEN: Final = (*(name for name in CHOICES if name != AUTO), DEFAULT)
"""The engines that a broker may be configured to use, and its default."""
LARGEST: Final = dict.fromkeys(PUBLISHED, 100_000)
"""The largest number of patterns for the published engines, which are slow."""
_CHANGE_BOUND_S: Final = 2.0
ANSWER_LIMIT_S: Final = 120.0


class Cell:
    """A process that runs one engine of a package; it answers each request with a dictionary of figures."""

    def __init__(self, package: Path, memory_bound_bytes: int) -> None:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(package), str(PROJECT)]),
            "PYTHONHASHSEED": "0",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.topics.cell_process", str(memory_bound_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def ask(self, do: str, limit_s: float = ANSWER_LIMIT_S, **request: Any) -> dict[str, Any]:
        """Return the answer to one request. Raises: RunFailed; after a timeout the cell is unusable."""
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None and answers is not None
        try:
            requests.write(json.dumps({"do": do, **request}).encode() + b"\n")
            requests.flush()
        except (BrokenPipeError, ValueError):
            raise RunFailed("its process ended") from None
        if not select.select([answers], [], [], limit_s)[0]:
            self.close()
            raise RunFailed(f"{do} took longer than {limit_s:.0f} s")
        line = answers.readline()
        if not line:
            raise RunFailed("its process ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RunFailed(f"{do}: {answer['error']}")
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def contestants(stage: Stage, names: Sequence[str]) -> Iterator[tuple[str, str, Path]]:
    """Yield each engine with the folders of its forms: interpreted, and compiled if it has a compiled module."""
    for name in names:
        for form, folder in reversed(list(stage.packages.items())):
            module = folder.joinpath(*ENGINES[name].__module__.split("."))
            if form == "interpreted" or any(module.parent.glob(f"{module.name}.*.so")):
                yield name, form, folder


def written(stage: Stage, name: str, lines: Sequence[str]) -> str:
    """Write lines to a file for the cells to read, and return its path."""
    path = stage.folder / f"{name}.txt"
    if not path.exists():
        path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def sizes(stage: Stage) -> None:
    """Measure all engines at all sizes: up to the size `together` in turn, above it one at a time."""
    plan = stage.plan
    keys = written(stage, "size-keys", workload.keys(plan.size_keys))
    for size in plan.sizes:
        patterns = written(stage, f"patterns-{size}", workload.patterns(size))
        chosen = []
        for name, form, folder in contestants(stage, list(ENGINES)):
            if size > LARGEST.get(name, size):
                _leave_out(stage, name, form, size, f"it would take minutes above {LARGEST[name]:,} patterns")
            else:
                chosen.append((name, form, folder))
        for group in [chosen] if size <= plan.together else [[one] for one in chosen]:
            if not stage.late():
                _measure_group(stage, size, group, patterns, keys)
                continue
            for name, form, _ in group:
                _leave_out(stage, name, form, size, "the time of this run was used up")


def _leave_out(stage: Stage, engine: str, form: str, size: int, reason: str) -> None:
    """Add a row that says why an engine is not measured."""
    stage.run.add("sizes", {"left_out": reason}, engine=engine, form=form, size=size)
    stage.tell(f"sizes: {engine}, {form}, {size:,} left out: {reason}")


def _measure_group(stage: Stage, size: int, group: Sequence[tuple[str, str, Path]], patterns: str, keys: str) -> None:
    """Measure engines in turn, step by step; an engine that fails is left out."""
    plan = stage.plan
    steps: list[tuple[str, float, dict[str, Any]]] = [
        ("build", plan.build_bound_s, {"patterns": patterns, "keys": keys}),
        ("settle", ANSWER_LIMIT_S, {"slice_s": plan.slice_s}),
        *[("lap", ANSWER_LIMIT_S, {})] * plan.rounds,
        ("change", ANSWER_LIMIT_S, {"count": plan.changes, "bound_s": _CHANGE_BOUND_S}),
        ("footprint", ANSWER_LIMIT_S, {}),
    ]
    with ExitStack() as stack:
        cells = {
            (name, form): stack.enter_context(closing(Cell(folder, plan.memory_bound_bytes)))
            for name, form, folder in group
        }
        answers: dict[tuple[str, str], list[dict[str, Any]]] = {kind: [] for kind in cells}
        for do, limit_s, request in steps:
            for name, form in [*answers]:
                own = {"engine": name, **request} if do == "build" else request
                try:
                    answers[name, form].append(cells[name, form].ask(do, limit_s, **own))
                except EXPECTED as reason:
                    del answers[name, form]
                    _leave_out(stage, name, form, size, str(reason))
    for (name, form), found in answers.items():
        figures = {key: value for one in found for key, value in one.items() if isinstance(value, (int, float))}
        figures["each_bytes"] = figures["footprint_bytes"] / figures["patterns"]
        laps_us = [one["us"] for one in found if "us" in one]
        for us in laps_us:
            stage.run.add("sizes", figures | {"us": us}, engine=name, form=form, size=size)
        stage.tell(f"sizes: {name}, {form}, {size:,}: {median(laps_us):.2f} us")


def hostility(stage: Stage) -> None:
    """Measure single matches of hostile sets of patterns, in the engines that a broker may be configured to use."""
    plan = stage.plan
    for name, form, folder in contestants(stage, CHOSEN):
        with stage.guarded(f"hostile, {name}, {form}"), closing(Cell(folder, plan.memory_bound_bytes)) as cell:
            for family in workload.hostile_families(1):
                answer = cell.ask(
                    "storm",
                    engine=name,
                    family=family,
                    patterns=plan.hostile_patterns,
                    matches=plan.hostile_matches,
                    bound_s=plan.hostile_bound_s,
                )
                stage.add("hostile", answer, family=family, engine=name, form=form)


def caching(stage: Stage) -> None:
    """Measure the route cache of a topic exchange: hits, and keys that never recur."""
    plan = stage.plan
    patterns = written(stage, f"patterns-{plan.cache_patterns}", workload.patterns(plan.cache_patterns))
    keys = written(stage, "thrash-keys", workload.keys(plan.thrash_keys, seed=5))
    for form, folder in reversed(list(stage.packages.items())):
        with closing(Cell(folder, plan.memory_bound_bytes)) as cell:
            row = cell.ask("cache", patterns=patterns, keys=keys, recurring=plan.cache_keys, rounds=plan.rounds)
        stage.add("cache", row, form=form)
