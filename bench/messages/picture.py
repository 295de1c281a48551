"""Draws a run: cost per message with limits and goals, ratios to RabbitMQ, and the other figures in panels."""

from __future__ import annotations

from typing import Any

from bench.messages.rows import measure_of
from bench.messages.tables import (
    CEILING,
    COMPILED,
    FLOORS,
    INTERPRETED,
    PEER,
    brokers,
    is_usual,
    ours,
    times_of_peer,
    verdicts,
)
from bench.picture import BLUE, GREEN, GREY, ORANGE, PALE, RED, bars, headroom, horizontal_bars, logarithmic, spreads
from bench.run import Run

_COLOURS = {COMPILED: BLUE, INTERPRETED: PALE, PEER: ORANGE, CEILING: GREY}
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


def cost(figure: Any, run: Run) -> bool:
    """Draw CPU time per message and its ratio to RabbitMQ's; return whether the run has such figures."""
    judged = ours(run)
    names = [
        name
        for name in run.facts["titles"]
        if is_usual(name) and measure_of(name) == "cpu_us" and "per_s" in run.row(name, broker=judged)
    ]
    if not names:
        return False
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 2))
    shown = [*brokers(run), CEILING]
    for rank, broker in enumerate(shown):
        rows = {name: row for name in names if "cpu_us" in (row := run.row(name, broker=broker))}
        label = "bare relay (limit)" if broker == CEILING else broker
        heights = {name: row["cpu_us"] for name, row in rows.items()}
        bars(upper, names, heights, rank, len(shown), label, _COLOURS.get(broker, GREEN), upright=True)
        shift = (rank - (len(shown) - 1) / 2) * 0.84 / len(shown)
        spreads(upper, [names.index(name) + shift for name in rows], list(rows.values()), "cpu_us")
    goals = {goal.scenario: goal.wanted for goal, _ in verdicts(run) if goal.figure == "cpu_us"}
    places = [at for at, name in enumerate(names) if name in goals]
    upper.plot(places, [goals[names[at]] for at in places], "*", color=RED, markersize=7, label="goal")
    logarithmic(upper, "", "broker CPU-us per message\n(less is better)")
    headroom(upper, 4)
    upper.legend(fontsize=7, frameon=False, ncols=6, loc="upper left")
    _ratios(lower, run, names)
    return True


def _ratios(axes: Any, run: Run, names: list[str]) -> None:
    contestants = [name for name in brokers(run) if name != PEER]
    found = {one: {name: times_of_peer(run, one, name) or 0.0 for name in names} for one in contestants}
    axes.set_visible(any(times for each in found.values() for times in each.values()))
    if not axes.get_visible():
        return
    for rank, (broker, times) in enumerate(found.items()):
        bars(axes, names, times, rank, len(found), broker, _COLOURS.get(broker, GREEN), upright=True)
    for at, name in enumerate(names):
        if name in FLOORS:
            axes.plot([at - 0.45, at + 0.45], [FLOORS[name]] * 2, color="black", linewidth=1.2)
    logarithmic(axes, "line: floor", f"messages per broker CPU-second,\ntimes {PEER}'s")
    headroom(axes, 3)
    axes.legend(fontsize=7, frameon=False, ncols=6, loc="upper left")


def more(figure: Any, run: Run) -> bool:
    """Draw the figures other than cost per message, a panel each; return whether the run has any."""
    panels = [one for one in _PANELS if one[1] in run.row(one[0], broker=ours(run))]
    if not panels:
        return False
    wanted = {(goal.scenario, goal.figure): goal.wanted for goal, _ in verdicts(run)}
    places = list(figure.subplots(-(-len(panels) // 2), 2, squeeze=False).flat)
    for axes, (scenario, name, title) in zip(places, panels, strict=False):
        found = {one: max(run.row(scenario, broker=one)[name] or 0.0, 0.0) for one in brokers(run)}
        found = {one: value for one, value in found.items() if name in run.row(scenario, broker=one)}
        horizontal_bars(axes, found, [_COLOURS.get(one, GREEN) for one in found], title)
        if (scenario, name) in wanted:
            axes.axvline(wanted[scenario, name], color=RED, linestyle=":", linewidth=1.4)
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    figure.supxlabel("dotted: the goal", fontsize=8)
    return True
