"""Markdown tables, and figures as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.run import Row, Run
from broker.figures.numerals import count_text, number_text


def size(value: float) -> str:
    """Return a number of bytes as text: 512 B, 12.3 kB, 45 MB."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.0f} B"


def formatter_of(name: str) -> Callable[[float], str]:
    """Return the function that formats a figure, by the unit at the end of its name."""
    if name.endswith("_bytes"):
        return size
    return count_text if name.endswith("per_s") else number_text


def known(row: Row | Mapping[str, Any], name: str, formatter: Callable[[Any], str] | None = None) -> str:
    """Return a figure of a row as text, a dash if it was not measured."""
    value = row[name] if isinstance(row, Row) else row.get(name)
    return "-" if value is None else (formatter or formatter_of(name))(value)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, the figure, and its format if the unit does not determine it."""

    title: str
    figure: str | Callable[[Row], str]
    formatter: Callable[[Any], str] | None = None

    def cell(self, row: Row) -> str:
        """Return the figure of a row as text, a dash if it was not measured."""
        return self.figure(row) if callable(self.figure) else known(row, self.figure, self.formatter)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, an empty text without rows."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) if len(lines) > 2 else ""


def table_of(rows: Iterable[Row], columns: Sequence[Column]) -> str:
    """Return a table with a line for each row."""
    return table([one.title for one in columns], [[one.cell(row) for one in columns] for row in rows])


def rows_table(parts: Sequence[str], columns: Sequence[Column]) -> Callable[[Run], str]:
    """Return a function that makes the table of these parts of a run."""
    return lambda run: table_of(run.rows(*parts), columns)


def crossed(rows: Iterable[Row], down: Sequence[Column], across: str, cell: Callable[[Row], str]) -> str:
    """Return a table with a line for each value of the columns `down`, and a column for each value of `across`."""
    columns: dict[Any, None] = {}
    lines: dict[tuple[str, ...], dict[Any, str]] = {}
    for row in rows:
        columns[row[across]] = None
        lines.setdefault(tuple(one.cell(row) for one in down), {})[row[across]] = cell(row)
    names = [f"{one:,}" if isinstance(one, int) else str(one) for one in columns]
    cells = [[*line, *(found.get(one, "-") for one in columns)] for line, found in lines.items()]
    return table([*(one.title for one in down), *names], cells)


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal, the measured figure, and whether it was reached."""

    what: str
    wanted: str
    found: str
    reached: bool

    @classmethod
    def at_most(
        cls, what: str, found: float | None, wanted: float, formatter: Callable[[float], str] = number_text
    ) -> list[Goal]:
        """Return the goal that a figure is at most `wanted`, or nothing if it was not measured."""
        return [] if found is None else [cls(what, f"at most {formatter(wanted)}", formatter(found), found <= wanted)]

    @classmethod
    def at_least(
        cls, what: str, found: float | None, wanted: float, formatter: Callable[[float], str] = number_text
    ) -> list[Goal]:
        """Return the goal that a figure is at least `wanted`, or nothing if it was not measured."""
        return [] if found is None else [cls(what, f"at least {formatter(wanted)}", formatter(found), found >= wanted)]


def goals_table(goals: Iterable[Goal]) -> str:
    """Return a table of goals."""
    cells = [[one.what, one.wanted, one.found, "reached" if one.reached else "**not reached**"] for one in goals]
    return table(["goal", "to reach", "found", ""], cells)


def machine_text(facts: Mapping[str, Any]) -> str:
    """Return a sentence about the machine and the run."""
    found, form = facts["machine"], "compiled" if facts.get("compiled", True) else "interpreted"
    quick = " A quick run with small numbers: its figures are not comparable." if facts.get("quick") else ""
    return (
        f"{found['cores']} cores, {found['cpu']}, {found['memory_gib']} GiB, Linux {found['kernel']}, "
        f"{found['file_system']}, one fdatasync {found['fdatasync_us']} us; Python {found['python']}; brokers {form}; "
        f"load {found['load']} of other programs at the start.{quick}"
    )
