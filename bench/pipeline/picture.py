"""Draws a stored run: rows per second and CPU time of all contestants, growth, and latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.pipeline import goals
from bench.plot import NoPicture
from bench.topics.ink import short

_OURS, _THEIRS = "#1f77b4", "#ff7f0e"
_PEERS = ("Spark", "SQL over Parquet", "a plain")


def draw(content: Mapping[str, Any], target: Path) -> None:
    """Write the picture; its suffix chooses the format. Raises: NoPicture."""
    try:
        library: Any = import_module("matplotlib.figure")  # an optional package: type checks must work without it
        import_module("matplotlib").rcParams["svg.hashsalt"] = "slotmq"  # equal figures produce equal files
    except ImportError:
        raise NoPicture("matplotlib is not installed; it comes with the [bench] extra") from None
    parts, found = content["parts"], content["machine"]
    figure = library.Figure(figsize=(11, 8), layout="constrained")
    (rates, costs), (growth, latency) = figure.subplots(2, 2)
    contestants = [
        (one["name"], one)
        for part in ("archive", "sql", "route", "replay")
        for one in parts.get(part, {}).get("contestants", ())
    ]
    _bars(rates, contestants, "rows_per_s", "rows per second, best lap (more is better)")
    _bars(costs, contestants, "cpu_s_per_million", "CPU-s per million rows, median (less is better)")
    costs.set_yticklabels([])
    _growth(growth, parts.get("growth", {}).get("sizes", ()))
    _latency(latency, parts.get("latency", {}))
    rows = content["plan"]["rows"]
    figure.suptitle(
        f"{rows:,} messages of {content['plan']['body_bytes']} B; {found['cores']} cores, {found['cpu']},"
        f" Python {found['python']}",
        fontsize=9,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120, metadata={"Date": None} if target.suffix == ".svg" else None)


def _bars(axes: Any, contestants: Sequence[tuple[str, Mapping[str, Any]]], figure: str, title: str) -> None:
    names = [name for name, _ in contestants]
    values = [one[figure] for _, one in contestants]
    colours = [_THEIRS if name.startswith(_PEERS) else _OURS for name in names]
    drawn = axes.barh(range(len(names)), values, color=colours)
    axes.bar_label(drawn, fmt=short, fontsize=7, padding=2)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    if values:
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 4, max(values) * 4)  # room for the figures
    axes.xaxis.set_major_formatter(lambda number, _place: short(number))
    axes.xaxis.set_minor_formatter("")
    _finish(axes, title)


def _growth(axes: Any, sizes: Sequence[Mapping[str, Any]]) -> None:
    _finish(axes, "growth: messages in the lake")
    axes.set_visible(bool(sizes))
    if not sizes:
        return
    across = [size["rows"] for size in sizes]
    for job, colour in (("archive", _OURS), ("route", "#2ca02c")):
        costs = [size[f"{job}_cpu_s"] / size["rows"] * 1e6 for size in sizes]
        axes.plot(across, costs, "o-", color=colour, label=f"{job}, CPU-s per million", markersize=4)
    axes.plot(
        across,
        [size["peak_bytes"] / 1e9 for size in sizes],
        "s:",
        color="#7f7f7f",
        label="peak memory, GB",
        markersize=4,
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend(fontsize=7, frameon=False)


def _latency(axes: Any, part: Mapping[str, Any]) -> None:
    names = {"quiet": "a tap, nobody reads it", "followed": "an archive follows it"}
    for rank, kind in enumerate(names):
        slices = part.get(kind, ())
        for shift, figure, colour in ((-0.2, "p50_ms", "#9ecae1"), (0.2, "p99_ms", _OURS)):
            values = [one[figure] for one in slices]
            if values:
                middle = sorted(values)[len(values) // 2]
                drawn = axes.bar([rank + shift], [middle], 0.36, color=colour, label=None if rank else figure[:3])
                axes.bar_label(drawn, fmt=short, fontsize=7, padding=2)
                axes.plot([rank + shift] * len(values), values, ".", color="black", markersize=4)
    axes.set_visible(bool(part))
    axes.set_xticks(range(len(names)), list(names.values()), fontsize=8)
    if part:
        axes.legend(fontsize=7, frameon=False)
    _finish(axes, f"publisher to consumer, ms; p99 is to stay under {goals.LATENCY_RATIO:g} times")


def _finish(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
