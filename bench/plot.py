"""Draws a stored run: cost per message with limits and goals, ratios to RabbitMQ, and the other figures in panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.columns import is_usual
from bench.goals import FLOORS, Verdict
from bench.measured import CEILING, COMPILED, INTERPRETED, PEER, Measured
from bench.topics.ink import bars, finish, headroom, short

COLOURS = {COMPILED: "#1f77b4", INTERPRETED: "#9ecae1", PEER: "#ff7f0e", CEILING: "#b0b0b0"}
_OTHER_COLOUR = "#2ca02c"
_PANELS = (
    ("S6-16", "p50_us", "latency at 1,000/s, 16 B: p50, us"),
    ("S6-16", "p99_us", "latency at 1,000/s, 16 B: p99, us"),
    ("S10", "p50_us", "lone persistent confirm: p50, us"),
    ("S4-16-full", "p99_us", "fan-out, publisher at full speed: p99, us"),
    ("lone-publish-get", "p50_us", "publish and get: p50, us"),
    ("lone-nagle-get", "p50_us", "the same with Nagle's algorithm on: p50, us"),
    ("S2-1048576", "cpu_us", "bodies of 1 MiB: CPU-us per message"),
    ("S2-16777216", "held_times", "bodies of 16 MiB: memory, times those in flight"),
    ("S7", "rss_growth_bytes", "memory that a backlog takes, bytes"),
    ("S7", "drain_per_s", "drain, messages/s (more is better)"),
    ("S7", "restart_s", "restart with that backlog, s"),
    ("S7", "crash_s", "the same after kill -9, s"),
    ("S8", "open_cpu_ms", "open a connection, CPU-ms"),
    ("S8", "each_bytes", "an idle connection, bytes"),
    ("bindings", "declare_s", "declare all bindings, s"),
    ("bindings", "each_bytes", "a binding, bytes"),
)


class NoPicture(Exception):
    """matplotlib is not installed."""


def draw_all(content: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the pictures of a stored run into a folder, and return the files.

    Raises: NoPicture.
    """
    try:
        library: Any = import_module("matplotlib.figure")  # an optional package: type checks must work without it
        import_module("matplotlib").rcParams["svg.hashsalt"] = "slotmq"  # equal figures produce equal files
    except ImportError:
        raise NoPicture("matplotlib is not installed; it comes with the [bench] extra") from None
    measured, found = Measured.of(content), content["machine"]
    caption = f"medians; {found['cores']} cores, {found['cpu']}, Python {found['python']}"
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, size, draw in (("cost", (11, 8), _cost), ("more", (11, 11), _more)):
        figure = library.Figure(figsize=size, layout="constrained")
        if draw(figure, measured, content["runs"]):
            figure.suptitle(caption, fontsize=8)
            path = folder / f"performance-{name}.svg"
            figure.savefig(path, metadata={"Date": None})
            drawn.append(path)
    return drawn


def _cost(figure: Any, measured: Measured, runs: Sequence[Mapping[str, Any]]) -> bool:
    """Draw CPU time per message, and the ratio of RabbitMQ's to it; return whether there is any."""
    names = [name for name in measured.titles if is_usual(name) and "per_s" in measured.figures(measured.ours, name)]
    if not names:
        return False
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 2))
    brokers = [*measured.brokers, CEILING]
    for rank, broker in enumerate(brokers):
        label = "bare relay (limit)" if broker == CEILING else broker
        heights = {name: measured.figures(broker, name).get("cpu_us", 0.0) for name in names}
        _bars(upper, names, heights, rank, len(brokers), label, broker)
        _dots(upper, names, runs, broker, rank, len(brokers))
    _stars(upper, names, measured.verdicts())
    contestants = [name for name in measured.brokers if name != PEER]
    for rank, broker in enumerate(contestants):
        times = {name: measured.times_of_peer(broker, name) or 0.0 for name in names}
        _bars(lower, names, times, rank, len(contestants), broker, broker)
    floored = [name for name in names if name in FLOORS]
    for at, name in enumerate(names):
        if name in FLOORS:
            label = "floor" if name == floored[0] else "_no legend"
            lower.plot([at - 0.45, at + 0.45], [FLOORS[name]] * 2, color="black", linewidth=1.2, label=label)
    upper.set_xticks(range(len(names)), names, fontsize=8)
    lower.set_xticks(range(len(names)), names, fontsize=8)
    finish(upper, "", "broker CPU-us per message\n(less is better)")
    headroom(upper, 4)
    upper.legend(fontsize=7, frameon=False, ncols=6, loc="upper left")
    if any(measured.times_of_peer(broker, name) for broker in contestants for name in names):
        finish(lower, "", f"messages per broker CPU-second,\ntimes {PEER}'s")
        headroom(lower, 3)
        lower.legend(fontsize=7, frameon=False, ncols=6, loc="upper left")
    return True


def _bars(
    axes: Any, names: Sequence[str], heights: Mapping[str, float], rank: int, of: int, label: str, broker: str
) -> None:
    known = {name: height for name, height in heights.items() if height > 0}
    bars(axes, names, known, rank, of, label, COLOURS.get(broker, _OTHER_COLOUR), upright=True)


def _dots(axes: Any, names: Sequence[str], runs: Sequence[Mapping[str, Any]], broker: str, rank: int, of: int) -> None:
    own = [run for run in runs if run["broker"] == broker and run["scenario"] in names and run["figures"].get("cpu_us")]
    shift = (rank - (of - 1) / 2) * 0.84 / of
    places = [names.index(run["scenario"]) + shift for run in own]
    axes.plot(places, [run["figures"]["cpu_us"] for run in own], ".", color="black", markersize=2)


def _stars(axes: Any, names: Sequence[str], verdicts: Sequence[Verdict]) -> None:
    found = {one.goal.scenario: one.goal.wanted for one in verdicts if one.goal.figure == "cpu_us"}
    places = [at for at, name in enumerate(names) if name in found]
    if places:
        axes.plot(places, [found[names[at]] for at in places], "*", color="#d62728", markersize=7, label="goal")


def _more(figure: Any, measured: Measured, _runs: Sequence[Mapping[str, Any]]) -> bool:
    """Draw figures that are no cost per message, one panel each; return whether there are any."""
    panels = [one for one in _PANELS if measured.figures(measured.ours, one[0]).get(one[1]) is not None]
    if not panels:
        return False
    wanted = {(one.goal.scenario, one.goal.figure): one.goal.wanted for one in measured.verdicts()}
    across = 2
    grid = figure.subplots(-(-len(panels) // across), across, squeeze=False)
    places = [axes for row in grid for axes in row]
    for axes, (scenario, name, title) in zip(places, panels, strict=False):
        brokers = [one for one in measured.brokers if measured.figures(one, scenario).get(name) is not None]
        values = [max(measured.figures(one, scenario)[name], 0.0) for one in brokers]
        colours = [COLOURS.get(one, _OTHER_COLOUR) for one in brokers]
        drawn = axes.barh(brokers, values, color=colours)
        over_goal = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axes.bar_label(drawn, fmt=short, fontsize=7, padding=3, bbox=over_goal)
        if (scenario, name) in wanted:
            axes.axvline(wanted[scenario, name], color="#d62728", linestyle=":", linewidth=1.4)
        axes.set_title(title, fontsize=8, loc="left")
        axes.tick_params(labelsize=7)
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.xaxis.set_major_formatter(lambda value, _place: short(value))
        axes.spines[["top", "right"]].set_visible(False)
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    if any((scenario, name) in wanted for scenario, name, _ in panels):
        figure.supxlabel("dotted: the goal", fontsize=8)
    return True
