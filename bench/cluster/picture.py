"""Draws the picture of docs/cluster.md: throughput and CPU time of the paths, the nodes and the queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.cluster.cases import LARGE, SMALL
from bench.cluster.report import Row, medians
from bench.plot import NoPicture

_COLOURS = {SMALL: "#1f77b4", LARGE: "#ff7f0e"}
_DATABASE = "#9aa5b1"


def draw(path: Path, content: Mapping[str, Any]) -> Path:
    """Write the picture and return its path. Raises: NoPicture."""
    try:
        library: Any = import_module("matplotlib.figure")  # an optional package: type checks must work without it
        import_module("matplotlib").rcParams["svg.hashsalt"] = "slotmq"  # equal figures produce equal files
    except ImportError:
        raise NoPicture("matplotlib is not installed; it comes with the [bench] extra") from None
    rows = [row for row in medians(content) if "per_s" in row]
    figure = library.Figure(figsize=(11, 8), layout="constrained")
    (rates, costs), (nodes, queues) = figure.subplots(2, 2)
    contestants = [row for row in rows if row["part"] in ("paths", "peers")]
    _rates(rates, contestants)
    _costs(costs, [row for row in contestants if row["size"] == LARGE])
    _curve(nodes, [row for row in rows if row["part"] == "nodes"], "nodes", "nodes, each with publisher and consumer")
    _curve(queues, [row for row in rows if row["part"] == "queues"], "queues", "queues, from A to B")
    found = content["machine"]
    form = "compiled" if content["compiled"] else "interpreted"
    figure.suptitle(
        f"Persistent, confirmed, acked; clients, brokers ({form}) and PostgreSQL {content['postgresql']} on "
        f"{found['cores']} cores, {found['cpu']}; medians",
        fontsize=9,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def _rates(axes: Any, rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys(row["name"] for row in rows))
    for size, shift in ((SMALL, 0.2), (LARGE, -0.2)):
        found = {row["name"]: row["per_s"] for row in rows if row["size"] == size}
        at = [len(names) - names.index(name) + shift for name in found]
        bars = axes.barh(at, list(found.values()), height=0.36, color=_COLOURS[size], label=f"{size:,} B")
        axes.bar_label(bars, [f"{value:,.0f}" for value in found.values()], fontsize=7, padding=2)
    axes.set_yticks([len(names) - at for at in range(len(names))], names, fontsize=8)
    axes.set_title("messages per second", fontsize=10)
    axes.margins(x=0.15)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)


def _costs(axes: Any, rows: Sequence[Row]) -> None:
    names = [row["name"] for row in rows]
    at = [len(names) - number for number in range(len(names))]
    brokers = [row["broker_us"] for row in rows]
    database = [row.get("database_us", 0.0) for row in rows]
    axes.barh(at, brokers, height=0.6, color=_COLOURS[LARGE], label="brokers, or a library's processes")
    bars = axes.barh(at, database, left=brokers, height=0.6, color=_DATABASE, label="PostgreSQL")
    sums = [f"{one + other:,.0f}" for one, other in zip(brokers, database, strict=True)]
    axes.bar_label(bars, sums, fontsize=7, padding=2)
    axes.set_xscale("symlog", linthresh=100)
    axes.set_yticks(at, names, fontsize=8)
    axes.set_xlabel("linear up to 100, then logarithmic", fontsize=8)
    axes.set_title(f"CPU-µs per message of {LARGE:,} B", fontsize=10)
    axes.margins(x=0.15)
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)


def _curve(axes: Any, rows: Sequence[Row], place: str, title: str) -> None:
    for size in sorted({row["size"] for row in rows}):
        found = [row for row in rows if row["size"] == size]
        axes.plot(
            [row[place] for row in found],
            [row["per_s"] for row in found],
            marker="o",
            color=_COLOURS[size],
            label=f"{size:,} B",
        )
    if place == "queues":
        axes.set_xscale("log")
    axes.set_xticks(sorted({row[place] for row in rows}), [f"{n:,}" for n in sorted({row[place] for row in rows})])
    axes.minorticks_off()
    axes.set_ylim(0)
    axes.set_title(title, fontsize=10)
    axes.set_ylabel("messages per second")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
