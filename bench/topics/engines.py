"""Measures every engine of the topic index: matching, memory, changes, hostile patterns, the route cache."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
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
"""The most patterns that the published engines, which are slow, are measured with."""
_CHANGE_BOUND_S: Final = 2.0
ANSWER_LIMIT_S: Final = 120.0


class Cell:
    """One process with the package of a folder; it answers each request with one dictionary of figures."""

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
        """Return the answer to one request. Raises: RunFailed; after a late answer the cell is unusable."""
        self.begin(do, **request)
        return self.answer(do, limit_s)

    def begin(self, do: str, **request: Any) -> None:
        """Send a request whose answer is fetched later. Raises: RunFailed."""
        entrance = self._process.stdin
        assert entrance is not None
        try:
            entrance.write(json.dumps({"do": do, **request}).encode() + b"\n")
            entrance.flush()
        except (BrokenPipeError, ValueError):
            raise RunFailed("its process ended") from None

    def answer(self, do: str, limit_s: float = ANSWER_LIMIT_S) -> dict[str, Any]:
        """Return the answer to the request that `begin` sent. Raises: RunFailed."""
        exit_ = self._process.stdout
        assert exit_ is not None
        if not select.select([exit_], [], [], limit_s)[0]:
            self.close()
            raise RunFailed(f"{do} took longer than {limit_s:.0f} s")
        line = exit_.readline()
        if not line:
            raise RunFailed("its process ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RunFailed(f"{do}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def compiles(package: Path, module: str) -> bool:
    """Return whether a module of a package is compiled."""
    path = package.joinpath(*module.split("."))
    return any(path.parent.glob(f"{path.name}.*.so")) or any(path.parent.glob(f"{path.name}.*.pyd"))


def contestants(stage: Stage, names: Sequence[str]) -> Iterator[tuple[str, str, Path]]:
    """Yield the engines with the packages in which they differ: interpreted, and compiled if available."""
    for name in names:
        for form, folder in reversed(list(stage.packages.items())):
            if form == "interpreted" or compiles(folder, ENGINES[name].__module__):
                yield name, form, folder


def written(stage: Stage, name: str, lines: Sequence[str]) -> str:
    """Write lines to a file for the cells to read, and return its path."""
    path = stage.folder / f"{name}.txt"
    if not path.exists():
        path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


@dataclass(slots=True)
class _Entry:
    """One engine at one size. Shapes: `figures` has the last answer's; `left_out` says why it is not measured."""

    engine: str
    form: str
    folder: Path
    size: int
    figures: dict[str, Any] = field(default_factory=dict)
    laps_us: list[float] = field(default_factory=list)
    left_out: str = ""

    def ask(self, cell: Cell, do: str, limit_s: float = ANSWER_LIMIT_S, **request: Any) -> None:
        """Ask a cell, or without a request fetch the answer to an earlier one; a failure leaves the entry out."""
        if self.left_out:
            return
        try:
            if request or do != "build":
                cell.begin(do, **request)
            answer = cell.answer(do, limit_s)
        except EXPECTED as reason:
            self.left_out = str(reason)
            return
        self.laps_us += [answer["us"]] if "us" in answer else []
        self.figures |= answer


def sizes(stage: Stage) -> None:
    """Measure all engines at all sizes: up to a size all of them in turn, above one at a time."""
    plan = stage.plan
    keys = written(stage, "size-keys", workload.keys(plan.size_keys))
    for size in plan.sizes:
        patterns = written(stage, f"patterns-{size}", workload.patterns(size))
        begun = []
        for name, form, folder in contestants(stage, list(ENGINES)):
            entry = _Entry(name, form, folder, size)
            if size > LARGEST.get(name, size):
                entry.left_out = f"it would take minutes above {LARGEST[name]:,} patterns"
            begun.append(entry)
        measured = [entry for entry in begun if not entry.left_out]
        for group in [measured] if size <= plan.together else [[entry] for entry in measured]:
            if stage.late():
                for entry in group:
                    entry.left_out = "the time of this run was used up"
            else:
                _measure_group(stage, group, patterns, keys)
        for entry in begun:
            if entry.left_out:
                stage.run.add("sizes", {"left_out": entry.left_out}, engine=entry.engine, form=entry.form, size=size)
                stage.tell(f"sizes: {entry.engine}, {entry.form}, {size:,} left out: {entry.left_out}")


def _measure_group(stage: Stage, group: Sequence[_Entry], patterns: str, keys: str) -> None:
    """Measure engines that run at once, in turn."""
    plan = stage.plan
    with ExitStack() as stack:
        cells = [(entry, stack.enter_context(closing(Cell(entry.folder, plan.memory_bound_bytes)))) for entry in group]
        for entry, cell in cells:  # builds all at once: building is not timed
            cell.begin("build", engine=entry.engine, patterns=patterns, keys=keys)
        for entry, cell in cells:
            entry.ask(cell, "build", plan.build_bound_s)
        for entry, cell in cells:
            entry.ask(cell, "settle", slice_s=plan.slice_s)
        for _ in range(plan.rounds):
            for entry, cell in cells:
                entry.ask(cell, "lap")
        for entry, cell in cells:
            entry.ask(cell, "change", count=plan.changes, bound_s=_CHANGE_BOUND_S)
            entry.ask(cell, "footprint")
            cell.close()
            if not entry.left_out:
                figures = {name: value for name, value in entry.figures.items() if isinstance(value, (int, float))}
                figures["each_bytes"] = figures["footprint_bytes"] / figures["patterns"]
                for us in entry.laps_us:
                    stage.run.add("sizes", figures | {"us": us}, engine=entry.engine, form=entry.form, size=entry.size)
                stage.tell(f"sizes: {entry.engine}, {entry.form}, {entry.size:,}: {median(entry.laps_us):.2f} us")


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
