"""The table and the rates at the end of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from demo.plan import QueuePlan
from demo.verdict import QueueVerdict, by_kind, total

COLUMNS = ("pattern", "queues", "expected", "got", "missing", "unexpected", "duplicates", "unexplained", "left")
WORST_QUEUES = 10


@dataclass(frozen=True, slots=True)
class Measured:
    """The totals and times of one run."""

    rows: int
    published: int
    resent: int
    confirmed: int
    refused: int
    returned: int
    delivered: int
    altered: int
    unconfirmed_rows: int
    publishing_s: float
    draining_s: float
    down_s: float | None
    stop_s: float | None
    stop_error: str | None

    def failures(self, verdict: QueueVerdict) -> list[str]:
        """Return the failures of the broker, an empty list if there are none."""
        found = (
            (self.unconfirmed_rows, "flights were never confirmed"),
            (self.returned, "flights were returned as unroutable"),
            (self.altered, "deliveries were altered"),
            (verdict.missing_confirmed, "confirmed flights are missing in a queue"),
            (verdict.missing - verdict.missing_confirmed, "unconfirmed flights are missing in a queue"),
            (verdict.unexpected, "flights were delivered to a queue that no binding led them to"),
            (verdict.unexplained, "duplicates were neither redelivered nor resent"),
            (verdict.left, "messages were left in the queues"),
        )
        return [f"{count:,} {text}" for count, text in found if count] + ([self.stop_error] if self.stop_error else [])

    def lines(self) -> list[str]:
        """Return the rates in words."""
        confirmed_rate = self.confirmed / max(self.publishing_s, 0.001)
        delivered_rate = self.delivered / max(self.draining_s, 0.001)
        counts = f"({self.resent:,} of them again), confirmed {self.confirmed:,}, nacked {self.refused:,}"
        lines = [
            f"published {self.published:,} {counts} in {self.publishing_s:.1f} s: {confirmed_rate:,.0f} flights/s",
            f"delivered {self.delivered:,} in {self.draining_s:.1f} s: {delivered_rate:,.0f} messages/s",
        ]
        if self.down_s is not None:
            lines.append(f"the broker was killed with -9 and ready again after {self.down_s:.2f} s")
        if self.stop_s is not None:
            lines.append(f"at the end the broker stopped within {self.stop_s:.2f} s of SIGTERM, with exit code 0")
        return lines


def table_rows(plan: Sequence[QueuePlan], verdicts: Sequence[QueueVerdict]) -> list[tuple[str, ...]]:
    """Return the cells of the table, a row for each kind of pattern and one for all."""
    kinds = [(kind, queues, verdict) for kind, (queues, verdict) in by_kind(plan, verdicts).items()]
    return [
        (
            kind,
            *(
                f"{n:,}"
                for n in (queues, v.expected, v.got, v.missing, v.unexpected, v.duplicates, v.unexplained, v.left)
            ),
        )
        for kind, queues, v in [*kinds, ("all", len(plan), total(verdicts))]
    ]


def plain_table(rows: Sequence[Sequence[str]]) -> str:
    """Return the table in plain columns."""
    widths = [max(len(row[column]) for row in (COLUMNS, *rows)) for column in range(len(COLUMNS))]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join((first, *others))

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join((line(COLUMNS), rule, *map(line, rows[:-1]), rule, line(rows[-1])))


def show_report(plan: Sequence[QueuePlan], verdicts: Sequence[QueueVerdict], measured: Measured, plain: bool) -> bool:
    """Print the table, the rates and the verdict; return whether the broker kept its guarantees."""
    rows = table_rows(plan, verdicts)
    print()
    if plain or not sys.stdout.isatty() or not _show_rich_table(rows):
        print(plain_table(rows))
    print()
    for text in measured.lines():
        print(text)
    worst = [(queue, verdict) for queue, verdict in zip(plan, verdicts, strict=True) if not verdict.holds]
    for queue, verdict in worst[:WORST_QUEUES]:
        print(f"  {queue.name} ({queue.kind}: {', '.join(queue.binding_keys)}): {verdict}")
    failures = measured.failures(total(verdicts))
    for text in failures:
        print(f"FAILED: {text}")
    if not failures:
        print(f"OK: all {len(plan):,} queues got their flights, all of them and no others; nothing confirmed was lost")
    return not failures


def _show_rich_table(rows: Sequence[Sequence[str]]) -> bool:
    """Print the table with rich; return False if rich is not installed."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        return False
    table = Table()
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == COLUMNS[0] else "right")
    for row in rows[:-1]:
        table.add_row(*row)
    table.add_section()
    table.add_row(*rows[-1], style="bold")
    Console().print(table)
    return True
