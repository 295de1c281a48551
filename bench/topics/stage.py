"""The parts that a run shares: the plan, the packages to measure, a folder, and a progress callback."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from bench.topics.cell import Package
from bench.topics.plan import Plan
from broker.routing.engine_names import ENGINES


@dataclass(frozen=True, slots=True)
class Stage:
    """The circumstances of a run. Units: no long step begins after the `deadline` of the monotonic clock."""

    plan: Plan
    packages: Sequence[Package]
    folder: Path
    tell: Callable[[str], None]
    deadline: float = inf

    def late(self) -> bool:
        """Return whether the deadline forbids another long step."""
        return time.monotonic() > self.deadline

    def contestants(self, names: Sequence[str]) -> list[tuple[str, Package]]:
        """Return the engines with the packages in which they differ: interpreted, and compiled if available."""
        return [
            (name, package)
            for name in names
            for at, package in enumerate(self.packages)
            if at == 0 or package.compiles(ENGINES[name].__module__)
        ]

    def write(self, name: str, lines: Sequence[str]) -> str:
        """Write lines to a file for the cells to read, and return its path."""
        path = self.folder / f"{name}.txt"
        if not path.exists():
            path.write_text("".join(f"{line}\n" for line in lines))
        return str(path)
