"""The common style of all pictures; writes them to files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

from bench.run import Row, Run
from broker.figures.numerals import short_text

Draw = Callable[[Any, Run], bool]
"""Draws into a figure, and returns whether the run has figures for it."""

BLUE, ORANGE, GREEN, RED, GREY, PALE = "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#b0b0b0", "#9ecae1"


class NoPicture(ImportError):
    """matplotlib is not installed."""


def draw_all(pictures: Mapping[str, tuple[tuple[float, float], Draw]], run: Run, folder: Path) -> list[Path]:
    """Write the pictures that a run has figures for into a folder, and return their paths. Raises: NoPicture."""
    if not pictures:
        return []
    found, form = run.facts["machine"], "compiled" if run.facts.get("compiled", True) else "interpreted"
    caption = f"brokers {form}; medians; {found['cores']} cores, {found['cpu']}, Python {found['python']}"
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, (size, draw) in pictures.items():
        figure = new_figure(size)
        if draw(figure, run):
            figure.suptitle(caption, fontsize=8)
            drawn.append(folder / f"{name}.svg")
            figure.savefig(drawn[-1], metadata={"Date": None})
    return drawn


def new_figure(size: tuple[float, float]) -> Any:
    """Return an empty figure. Raises: NoPicture."""
    try:
        library: Any = import_module("matplotlib.figure")  # an optional package: type checks must work without it
        import_module("matplotlib").rcParams["svg.hashsalt"] = "slotmq"  # equal figures produce equal files
    except ImportError:
        raise NoPicture("matplotlib is not installed; it comes with the [bench] extra") from None
    return library.Figure(figsize=size, layout="constrained")


def bars(
    axes: Any,
    places: Sequence[str],
    heights: Mapping[str, float],
    rank: int,
    count: int,
    name: str,
    colour: str | None,
    *,
    hatch: bool = False,
    upright: bool = False,
) -> None:
    """Draw a bar, labelled with its height, at each place; `rank` is its position among the `count` bars there."""
    width = 0.84 / count
    known = [place for place in places if heights.get(place, 0) > 0]
    drawn = axes.bar(
        [places.index(place) + (rank - (count - 1) / 2) * width for place in known],
        [heights[place] for place in known],
        width * 0.94,
        color=colour,
        label=name,
        hatch="//" if hatch else None,
        edgecolor="white",
    )
    axes.bar_label(drawn, fmt=short_text, fontsize=6 if upright else 7, padding=2, rotation=90 if upright else 0)
    axes.set_xticks(range(len(places)), places, fontsize=8)


def horizontal_bars(axes: Any, values: Mapping[str, float], colours: Sequence[str] | str, title: str) -> None:
    """Draw a bar for each name, from top to bottom, with its value beside it."""
    drawn = axes.barh(list(values), list(values.values()), color=colours)
    axes.bar_label(drawn, fmt=short_text, fontsize=7, padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.xaxis.set_major_formatter(_short_tick)
    plain(axes, title)


def spreads(axes: Any, across: Sequence[float], rows: Sequence[Row], figure: str, colour: str = "black") -> None:
    """Draw a thin line from the least to the greatest value of a figure."""
    for at, row in zip(across, rows, strict=True):
        axes.plot([at, at], row.spread(figure), color=colour, linewidth=0.8)


def line(axes: Any, rows: Iterable[Row], across: str, up: str, *, times: float = 1.0, **style: Any) -> None:
    """Draw a figure of the rows over another one."""
    points = [(row[across], row[up] * times) for row in rows if up in row]
    if points:
        axes.plot(*zip(*points, strict=True), **{"marker": "o", "markersize": 4, **style})


def plain(axes: Any, title: str, across: str = "", up: str = "", *, legend: bool = False) -> None:
    """Set titles, and remove superfluous lines."""
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(across, fontsize=8)
    axes.set_ylabel(up, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, frameon=False)


def logarithmic(axes: Any, across_text: str, up_text: str, *, across: Sequence[int] | None = None) -> None:
    """Set axis titles, a vertical log scale, and a horizontal one with ticks at given places."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    _tick(axes.yaxis, low, high)
    if across is not None:
        axes.set_xscale("log")
        axes.set_xticks(across)
        axes.xaxis.set_major_formatter(_short_tick)
        axes.xaxis.set_minor_formatter("")
    axes.set_ylim(low, high)
    plain(axes, "", across_text, up_text)
    axes.grid(visible=True, which="major", axis="both" if across is not None else "y", linewidth=0.3)
    axes.set_axisbelow(True)


def headroom(axes: Any, factor: float) -> None:
    """Add space below, so that the lowest bar is visible, and above, for the figures on bars and for a legend."""
    low, high = axes.get_ylim()
    _tick(axes.yaxis, low / 2, high * factor)
    axes.set_ylim(low / 2, high * factor)


def ticks(low: float, high: float) -> list[float]:
    """Return the ticks of a log scale between two numbers: at decades, with 2 and 5 of each if they are few."""
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    steps = (1, 2, 5) if log10(high / low) < 3 else (1,)
    return [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]


def _tick(axis: Any, low: float, high: float) -> None:
    axis.set_ticks(ticks(low, high))
    axis.set_major_formatter(_short_tick)
    axis.set_minor_formatter("")


def _short_tick(number: float, _place: int) -> str:
    return short_text(number)
