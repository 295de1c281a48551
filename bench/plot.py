"""Draws a benchmark: broker CPU time per message and messages per second, one bar per broker, one dot per run."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.report import CEILING, Line
from bench.run import Run
from bench.scenario import Scenario

_COLOURS = {"SlotMQ": "#1f77b4", "RabbitMQ": "#ff7f0e", CEILING: "#b0b0b0"}


class NoPicture(Exception):
    """matplotlib is not installed."""


def draw(path: Path, table: Sequence[Line], runs: Sequence[Run], scenarios: Sequence[Scenario], caption: str) -> None:
    """Write the picture to `path`; its suffix chooses the format (SVG, PNG, PDF).

    Raises: NoPicture.
    """
    try:
        library: Any = import_module("matplotlib.figure")  # an extra: type checks must not need it
    except ImportError:
        raise NoPicture("matplotlib is not installed; it comes with the [bench] extra") from None
    figure = library.Figure(figsize=(10, 7), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    names = [scenario.name for scenario in scenarios]
    brokers = list(dict.fromkeys(line.broker for line in table))
    brokers.sort(key=lambda name: name == CEILING)
    width = 0.8 / max(1, len(brokers))
    for rank, broker in enumerate(brokers):
        shift = (rank - (len(brokers) - 1) / 2) * width
        own = [line for line in table if line.broker == broker]
        dots = [run for run in runs if run.broker == broker]
        label = "bare relay (ceiling)" if broker == CEILING else broker
        colour = _COLOURS.get(broker, "#2ca02c")
        for axes, figure_of in ((upper, _cpu_us), (lower, _rate)):
            _bars(axes, names, shift, width, {line.scenario: figure_of(line) for line in own}, colour, label)
            places = [names.index(run.scenario) + shift for run in dots]
            axes.plot(places, [figure_of(run) or float("nan") for run in dots], ".", color="black", markersize=4)
    _finish(upper, "broker CPU-µs per message\n(log; less is better)")
    _finish(lower, "messages per second\n(log; more is better)")
    lower.set_xticks(range(len(names)), [scenario.title.replace(", ", "\n") for scenario in scenarios], fontsize=8)
    upper.legend(frameon=False, ncols=len(brokers), loc="upper left")
    figure.suptitle(caption, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=120, metadata=metadata)


def _cpu_us(one: Line | Run) -> float | None:
    return one.cpu_us


def _rate(one: Line | Run) -> float | None:
    return one.rate


def _bars(
    axes: Any,
    names: Sequence[str],
    shift: float,
    width: float,
    heights: dict[str, float | None],
    colour: str,
    label: str,
) -> None:
    known = {name: height for name, height in heights.items() if height}
    places = [names.index(name) + shift for name in known]
    bars = axes.bar(places, list(known.values()), width * 0.95, color=colour, label=label)
    axes.bar_label(bars, fmt=_short, fontsize=7, padding=2)


def _finish(axes: Any, title: str) -> None:
    axes.set_yscale("log")
    axes.set_ylabel(title)
    axes.spines[["top", "right"]].set_visible(False)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 3)  # room for the labels and the legend


def _short(number: float) -> str:
    """Return a number in three digits: 1.23, 45.6, 789, 12k, 3.4M."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.3g}"
