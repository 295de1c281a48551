"""The live table of the brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from demo.overlay.gauges import Gauge
from demo.overlay.sites import MIDDLE, PUBLISHERS

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = (
    "broker",
    "state",
    "links",
    "knows (V_b)",
    "patterns",
    "messages on",
    "left out",
    "not sure, so on",
    "MB out",
    "lag",
)


def cells(name: str, gauge: Gauge) -> tuple[str, ...]:
    """Return a row; "messages on" of a leaf are those that it published into the overlay, or got from it."""
    if gauge.state != "up":
        return (name, gauge.state, *[""] * (len(COLUMNS) - 2))
    inner = name in MIDDLE
    passed = gauge.matched if inner else gauge.sent if name == PUBLISHERS else gauge.delivered
    return (
        name,
        gauge.state,
        f"{gauge.links}/{gauge.links_of}",
        " ".join(f"{leaf}:{time}" for leaf, time in sorted(gauge.known.items())),
        f"{gauge.wanted:,}",
        f"{passed:,}",
        f"{gauge.filtered:,}" if inner else "",
        f"{gauge.flooded:,}" if inner else "",
        f"{sum(gauge.bytes_to.values()) / 1e6:,.1f}",
        "" if inner else f"{gauge.lag:,}",
    )


def live_table(gauges: Mapping[str, Gauge]) -> Table:
    """Return the table for a terminal. Raises: ImportError without rich."""
    from rich.table import Table

    table = Table(title="the overlay")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in COLUMNS[:2] else "right")
    for name, gauge in gauges.items():
        style = "" if gauge.state == "up" else "bold red" if gauge.state == "killed" else "yellow"
        table.add_row(*cells(name, gauge), style=style)
    return table
