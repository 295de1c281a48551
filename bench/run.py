"""The figures of a run: cells that its rounds fill, saved as a small table of medians and spreads.

Neither the file's name nor its contents identify the machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, NoReturn, Self

RESULTS = Path(__file__).resolve().parent / "results"

Figures = dict[str, float]
"""The figures of one measurement, by names that end with their unit."""


@dataclass(slots=True)
class Row:
    """A cell of a run: the part that measured it, its key, and its figures.

    Shapes: `figures` are medians; `spreads` has the least and the greatest value of figures that differ between rounds;
    `more` has the texts and series of the last round.
    """

    part: str
    key: dict[str, Any]
    runs: int = 0
    figures: Figures = field(default_factory=dict)
    spreads: dict[str, tuple[float, float]] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return next(found[name] for found in (self.key, self.figures, self.more, {name: None}) if name in found)

    def __contains__(self, name: str) -> bool:
        return self[name] is not None

    def spread(self, name: str) -> tuple[float, float]:
        """Return the least and the greatest value of a figure."""
        return self.spreads.get(name, (self.figures[name], self.figures[name]))

    def line(self) -> str:
        """Return the row as a line of a saved run."""
        figures = {name: [value, *self.spreads.get(name, ())] for name, value in self.figures.items()}
        content = {"part": self.part, "key": self.key, "runs": self.runs, "figures": figures, "more": self.more}
        return json.dumps({name: value for name, value in content.items() if value}, ensure_ascii=False)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """Return the row of a line of a saved run."""
        figures = content.get("figures", {})
        spreads = {name: (value[1], value[2]) for name, value in figures.items() if len(value) > 1}
        medians = {name: value[0] for name, value in figures.items()}
        return cls(content["part"], content.get("key", {}), content["runs"], medians, spreads, content.get("more", {}))


class Run:
    """A run of one suite. Shapes: `facts` describes the machine, the brokers and the extent."""

    def __init__(self, suite: str, facts: Mapping[str, Any] | None = None) -> None:
        self.suite = suite
        self.facts: dict[str, Any] = dict(facts or {})
        self.failures: list[str] = []
        self._rows: dict[str, Row] = {}
        self._rounds: dict[str, list[Mapping[str, Any]]] = {}

    def add(self, part: str, figures: Mapping[str, Any], **key: Any) -> None:
        """Add the figures of one round to a cell; values that are not numbers replace those in the cell's `more`."""
        name = json.dumps([part, key])
        rounds = self._rounds.setdefault(name, [])
        rounds.append(figures)
        row = self._rows[name] = Row(part, key, len(rounds))
        for figure in dict.fromkeys(figure for found in rounds for figure in found):
            values = [found[figure] for found in rounds if found.get(figure) is not None]
            if not all(isinstance(value, (int, float)) for value in values):
                row.more[figure] = values[-1]
            elif values:
                least, middle, most = map(_rounded, (min(values), median(values), max(values)))
                row.figures[figure] = middle
                if least != most:
                    row.spreads[figure] = (least, most)

    def rows(self, *parts: str, **key: Any) -> list[Row]:
        """Return the rows of these parts, by default of all, with these values in their keys, in measured order."""
        return [
            row
            for row in self._rows.values()
            if (not parts or row.part in parts) and all(row.key.get(name) == value for name, value in key.items())
        ]

    def row(self, part: str, **key: Any) -> Row:
        """Return the first row that matches, or an empty row."""
        return next(iter(self.rows(part, **key)), Row(part, key))

    def save(self, path: Path) -> None:
        """Write the run: a line with its facts, then a line for each row."""
        path.parent.mkdir(parents=True, exist_ok=True)
        written = {"suite": self.suite, "written": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}
        head = json.dumps(written | self.facts | {"failures": self.failures}, ensure_ascii=False)
        path.write_text("".join(f"{line}\n" for line in (head, *(row.line() for row in self._rows.values()))))

    @classmethod
    def load(cls, path: Path) -> Self:
        head, *lines = map(json.loads, path.read_text().splitlines())
        run = cls(head.pop("suite"), head)
        run.failures = head.pop("failures")
        for row in map(Row.of, lines):
            run._rows[json.dumps([row.part, row.key])] = row
        return run


def new_path(suite: str) -> Path:
    """Return the path of a new run in bench/results."""
    return RESULTS / f"{suite}-{datetime.now(UTC):%Y%m%d-%H%M%S}.jsonl"


def exit_on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    """Exit on a signal, so that the started brokers are stopped."""
    raise SystemExit(128 + number)


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.6g}")
