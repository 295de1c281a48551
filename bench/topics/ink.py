"""The common style of all pictures: one colour per engine, log scales, the articles' figures in black."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from typing import Any

COLOURS = {
    "conventional": "#7f7f7f",
    "split-once": "#bcbd22",
    "topic-words": "#e377c2",
    "pattern-words": "#8c564b",
    "plain-bitmap": "#ff9896",
    "plain-bitmap, seen keys": "#d62728",
    "bitmap": "#9467bd",
    "trie": "#1f77b4",
    "dfa": "#2ca02c",
    "dfa, no bound": "#98df8a",
    "dfa, a tenth of its bounds": "#006d2c",
    "tiered": "#ff7f0e",
}


def label(engine: str, form: str = "interpreted") -> str:
    """Return the name of an engine in a legend."""
    return f"{engine}, compiled" if form == "compiled" else engine


def style(engine: str, form: str = "interpreted") -> dict[str, Any]:
    """Return the style of an engine's line: heavy for its compiled form, else thin."""
    compiled = form == "compiled"
    return {
        "label": label(engine, form),
        "color": COLOURS.get(engine, "#17becf"),
        "marker": "s" if compiled else "o",
        "markersize": 4 if compiled else 3,
        "linewidth": 2.2 if compiled else 1.0,
    }


def theirs(engine: str, name: str) -> dict[str, Any]:
    """Return the style of an article's figures: black-edged stars in the engine's colour, joined by a thin line."""
    return {
        "label": f"article: {name}",
        "color": COLOURS.get(engine, "black"),
        "marker": "*",
        "markersize": 11,
        "markeredgecolor": "black",
        "linewidth": 0.6,
        "linestyle": ":",
    }


def bars(
    axes: Any,
    places: Sequence[str],
    heights: Mapping[str, float],
    rank: int,
    of: int,
    name: str,
    colour: str | None,
    *,
    hatch: bool = False,
    upright: bool = False,
) -> None:
    """Draw a bar at each place that has a height, with the height above it."""
    width = 0.84 / of
    known = [place for place in places if place in heights]
    drawn = axes.bar(
        [places.index(place) + (rank - (of - 1) / 2) * width for place in known],
        [heights[place] for place in known],
        width * 0.94,
        color=colour,
        label=name,
        hatch="//" if hatch else None,
        edgecolor="white",
    )
    axes.bar_label(drawn, fmt=short, fontsize=6 if upright else 7, padding=2, rotation=90 if upright else 0)


def finish(axes: Any, across_text: str, up_text: str, *, across: Sequence[int] | None = None) -> None:
    """Set axis titles, a vertical log scale, and a horizontal one with ticks at given places, or at all decades."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    _tick(axes.yaxis, low, high)
    if across is not None:
        axes.set_xscale("log")
        if across:
            axes.set_xticks(across)
            axes.xaxis.set_major_formatter(_short_tick)
            axes.xaxis.set_minor_formatter("")
        else:
            _tick(axes.xaxis, *axes.get_xlim())
    axes.set_ylim(low, high)
    axes.set_xlabel(across_text, fontsize=8)
    axes.set_ylabel(up_text, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(visible=True, which="major", axis="both" if across is not None else "y", linewidth=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def headroom(axes: Any, factor: float) -> None:
    """Add room below, so that the lowest bar is visible, and above, for the figures on bars and for a legend."""
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
    return short(number)


def short(number: float) -> str:
    """Return a number in three digits: 1.23, 45.6, 789, 12k, 3.4M, 2.65G."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.3g}"
