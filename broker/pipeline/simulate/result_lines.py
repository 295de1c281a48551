"""The results of simulations as lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from broker.cli.table import aligned
from broker.figures.numerals import digits, duration_text, short_text, size_text
from broker.pipeline.simulate.plan import TABLES
from broker.pipeline.simulate.workload import LEAF_PATTERNS

__all__ = ["result_lines"]

Row = Mapping[str, Any]


def _traffic(row: Row, name: str) -> str:
    return f"{digits(100 * row[name] / row['flooded'])} %"


def _changes(row: Row) -> str:
    if row["changes"] is None:
        return "-"
    return f"{row['told_changes']} of {row['changes']}, {size_text(row['told_bytes'] / row['changes'])}"


def _crash(row: Row) -> str:
    sent = "" if row["crash_bytes"] is None else f", {size_text(row['crash_bytes'])}"
    return f"{duration_text(row['converge_ms'] * 1000)}{sent}"


COLUMNS: Final[Mapping[str, Callable[[Row], str]]] = {
    "brokers": lambda row: f"{row['brokers']:,}",
    "leaves": lambda row: f"{row['leaves']:,}",
    "complete": lambda row: f"{row['observed_leaves']:,}",
    "redundancy": lambda row: str(row["redundancy"]),
    "aggregation": lambda row: row["aggregation"],
    "subscriptions": lambda row: short_text(row["subscriptions"]),
    "traffic": lambda row: _traffic(row, "forwarded"),
    "needed": lambda row: _traffic(row, "needed"),
    "patterns": lambda row: short_text(row["inner_patterns"]),
    "memory": lambda row: size_text(row["broker_bytes"]),
    "told changes": _changes,
    "crash": _crash,
    "CPU": lambda row: duration_text(row["broker_cpu_ms"] * 1000),
}

NOTES: Final = (
    "traffic, needed: links crossed, of those that flooding crosses; needed is the least that reaches all who want it",
    "patterns: of all directions of an inner broker; memory, CPU: for each broker, the mean of all",
    "told changes: subscriptions and unsubscriptions that other brokers heard of; bytes for each change, on all links",
    "crash: until all know everything again after a broker at the root came back with nothing; bytes on all links",
    "exact: inner brokers above the sites, and the sites of complete leaves; sampled: messages, changes, other sites",
    f"aggregated: the equal subscriptions of a leaf, whose clients choose among {LEAF_PATTERNS} patterns",
)


def result_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the results, those of each level as a table, and what the figures mean."""
    for level, title in (
        (TABLES, "What brokers announce (level tables)"),
        ("messages", "Whole brokers (level messages)"),
    ):
        chosen = sorted((row for row in rows if row["level"] == level), key=_order)
        if not chosen:
            continue
        yield f"{title}, {chosen[0]['messages']} messages in each"
        for line in aligned(list(COLUMNS), [[text(row) for text in COLUMNS.values()] for row in chosen]):
            yield f"  {line}"
    yield from NOTES


def _order(row: Row) -> tuple[Any, ...]:
    return (row["brokers"], row["redundancy"], row["aggregation"], row["subscriptions"])
