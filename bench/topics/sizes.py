"""Measures every engine at every size: matching, memory, adding and removing."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from math import log
from statistics import median
from typing import Any

from bench.machine import step_ns
from bench.topics import workload
from bench.topics.cell import Cell, NoAnswer, Package
from bench.topics.stage import Stage
from broker.routing.engine_names import ENGINES

_CHANGE_BOUND_S = 2.0


@dataclass(slots=True)
class Entry:
    """The figures of one engine at one size, or the reason why it was left out."""

    engine: str
    form: str
    size: int
    figures: dict[str, Any] = field(default_factory=dict)
    laps_us: list[float] = field(default_factory=list)
    left_out: str = ""

    @property
    def match_us(self) -> float:
        return median(self.laps_us)

    def record(self) -> dict[str, Any]:
        """Return the entry for a JSON file."""
        content = asdict(self)
        if self.laps_us:
            figures = self.figures
            content["match_us"] = self.match_us
            content["bytes_per_pattern"] = figures["footprint_bytes"] / figures["patterns"]
        return content

    def value(self, name: str) -> float:
        """Return a figure by its name."""
        return self.match_us if name == "match_us" else float(self.figures[name])


def expected(name: str, size: int, entry: Entry, before: Entry | None) -> float:
    """Return a figure at a larger size, extrapolated from its growth since the entry before."""
    value = entry.value(name)
    if before is None:
        return value  # its growth is unknown
    growth = log(value / before.value(name)) / log(entry.size / before.size)
    return float(value * (size / entry.size) ** max(0.0, growth))


def measure(stage: Stage) -> dict[str, Any]:
    """Return the entries of all engines at all sizes."""
    plan = stage.plan
    keys = stage.write("size-keys", workload.keys(plan.size_keys))
    entries: list[Entry] = []
    for size in plan.sizes:
        stage.tell(f"sizes: {size:,} patterns")
        patterns = stage.write(f"patterns-{size}", workload.patterns(size))
        begun = []
        for name, package in stage.contestants(list(ENGINES)):
            entry = Entry(name, package.form, size, left_out=_too_long(stage, entries, name, package.form, size))
            entries.append(entry)
            if not entry.left_out:
                begun.append((entry, package))
        groups = [begun] if size <= plan.together else _by_engine(begun)
        for group in groups:
            if stage.late():
                for entry, _ in group:
                    entry.left_out = "the time of this run was used up"
            else:
                _measure_group(stage, group, patterns, keys)
    return {"keys": plan.size_keys, "rounds": plan.rounds, "entries": [entry.record() for entry in entries]}


def _by_engine(begun: list[tuple[Entry, Package]]) -> list[list[tuple[Entry, Package]]]:
    """Return the forms of each engine as a separate group."""
    groups: dict[str, list[tuple[Entry, Package]]] = {}
    for entry, package in begun:
        groups.setdefault(entry.engine, []).append((entry, package))
    return list(groups.values())


def _too_long(stage: Stage, entries: list[Entry], name: str, form: str, size: int) -> str:
    """Return why to skip an engine at a size, by its figures at smaller ones; empty if it must be measured."""
    plan = stage.plan
    past = [entry for entry in entries if (entry.engine, entry.form) == (name, form)]
    if not past:
        return ""
    if past[-1].left_out:
        return past[-1].left_out
    before = past[-2] if len(past) > 1 else None
    bounds = (("match_us", plan.match_bound_us, "us a match"), ("build_s", plan.build_bound_s, "s to build"))
    for figure, bound, unit in bounds:
        guess = expected(figure, size, past[-1], before)
        if guess > bound:
            return f"by its growth about {guess:,.0f} {unit} at {size:,} patterns; the bound is {bound:,.0f}"
    return ""


def _measure_group(stage: Stage, group: list[tuple[Entry, Package]], patterns: str, keys: str) -> None:
    """Measure engines that run at once, in turn."""
    plan = stage.plan
    with ExitStack() as stack:
        cells = [(entry, stack.enter_context(Cell(package, plan.memory_bound_bytes))) for entry, package in group]
        for entry, cell in cells:  # builds all at once: building is not timed
            cell.begin("build", engine=entry.engine, patterns=patterns, keys=keys)
        for entry, cell in cells:
            _figures(entry, cell, "build", 3 * plan.build_bound_s)
        for entry, cell in cells:
            _figures(entry, cell, "settle", slice_s=plan.slice_s)
        steps = [step_ns()]
        for _ in range(plan.rounds):
            for entry, cell in cells:
                if not entry.left_out:
                    _lap(entry, cell)
            steps.append(step_ns())
        for entry, cell in cells:
            entry.figures["step_ns"] = median(steps)
            if not entry.left_out:
                _figures(entry, cell, "change", count=plan.changes, bound_s=_CHANGE_BOUND_S)
                _figures(entry, cell, "footprint")
            cell.close()
            stage.tell("  " + _line(entry))
    for entry, _ in group:
        if entry.left_out:
            entry.laps_us = []


def _lap(entry: Entry, cell: Cell) -> None:
    try:
        entry.laps_us.append(cell.ask("lap")["us"])
    except NoAnswer as reason:
        entry.left_out = str(reason)


def _figures(entry: Entry, cell: Cell, do: str, limit_s: float = 120.0, **request: Any) -> None:
    """Add the answer of a cell to an entry, or leave the entry out; without a request it was sent before."""
    if entry.left_out:
        return
    try:
        if request or do != "build":
            cell.begin(do, **request)
        entry.figures |= cell.answer(do, limit_s)
    except NoAnswer as reason:
        entry.left_out = str(reason)


def _line(entry: Entry) -> str:
    name = f"{entry.engine:14}{entry.form:13}"
    if entry.left_out:
        return f"{name}left out: {entry.left_out}"
    figures = entry.figures
    return (
        f"{name}{entry.match_us:10.2f} us {figures['hits']:6.1f} hits {figures['visited']:8.0f} visited"
        f" {figures['footprint_bytes'] / figures['patterns']:8.0f} B"
        f"  add {figures['add_us']:6.1f} us, worst {figures['add_worst_us']:8.0f}"
        f"  remove {figures['remove_us']:6.1f} us, worst {figures['remove_worst_us']:8.0f}"
    )
