"""Prints the measurements: a table for each scenario with its physical limits, then floors and goals."""

from __future__ import annotations

from collections.abc import Sequence

from bench.columns import columns, number, rate, size
from bench.goals import Verdict
from bench.measured import CEILING, PEER, Measured

_NAME_WIDTH = 28
_NUMBERED = ("S5-100k", "S7", "S8", "bindings")  # scenarios whose figures depend on how many there are


def report_text(measured: Measured) -> str:
    """Return all tables."""
    return "\n\n".join(_block(measured, scenario) for scenario in measured.titles if _measured(measured, scenario))


def goals_text(measured: Measured, *, small: bool = False) -> str:
    """Return floors and goals, one line each; a `small` run omits those that depend on a number."""
    lines = [f"Floors, {measured.ours}: so many times {PEER}'s messages per broker CPU-second (medians of this run)"]
    lines += [
        f"  {one.scenario:10} at least {one.floor:3.0f}   found {one.found:6.1f}   {'holds' if one.holds else 'BROKEN'}"
        for one in measured.standings()
    ]
    if len(lines) == 1:
        lines.append(f"  not judged: no figures of both {measured.ours} and {PEER}")
    lines.append(f"Goals, {measured.ours}")
    lines += [_goal(one) for one in measured.verdicts() if not (small and one.goal.scenario in _NUMBERED)]
    return "\n".join(lines)


def ceiling_text(measured: Measured) -> str:
    """Return the generator's own ceiling, by which the brokers' figures can be judged."""
    shares = []
    for scenario in measured.titles:
        own = measured.figures(CEILING, scenario).get("per_s")
        fastest = max((measured.figures(name, scenario).get("per_s", 0.0) for name in measured.brokers), default=0.0)
        if own:
            shares.append(f"{scenario} {own:,.0f}/s" + (f" ({fastest / own:.0%} used)" if fastest else ""))
    if not shares:
        return "The generator's own ceiling was not measured."
    return "The generator's own ceiling, against a bare relay of the same bytes: " + ", ".join(shares) + "."


def steadiness_text(steps_ns: Sequence[float]) -> str:
    """Return how much the machine's own speed varied between runs."""
    if not steps_ns:
        return ""
    low, high = min(steps_ns), max(steps_ns)
    return f"A step of a fixed loop took {low:.0f} to {high:.0f} ns on this machine (x {high / low:.1f})."


def _measured(measured: Measured, scenario: str) -> bool:
    return any(line.scenario == scenario for line in measured.lines)


def _block(measured: Measured, scenario: str) -> str:
    shown = columns(scenario)
    head = [*(column.title for column in shown), f"{PEER} takes", "runs"]
    widths = [max(12, len(title) + 2) for title in head]
    rows = [["", *head]]
    for line in sorted((one for one in measured.lines if one.scenario == scenario), key=_last_the_relay):
        times = None if line.broker == CEILING else measured.times_of_peer(line.broker, scenario)
        cells = [column.cell(line.figures) for column in shown]
        name = "limit: bare relay" if line.broker == CEILING else line.broker
        rows.append([name, *cells, "-" if times is None else f"{times:.1f} x", str(line.runs)])
    for name, found in (("append + fdatasync", measured.append), ("least reads + writes", measured.least)):
        cells = [column.cell(found.get(scenario, {})) for column in shown]
        if set(cells) != {"-"}:  # a figure that the table has no column for
            batch = f", {found[scenario]['batch']:,.0f} a sync" if "batch" in found[scenario] else ""
            rows.append([f"limit: {name if not batch else 'append' + batch}", *cells, "", ""])
    texts = [
        f"  {row[0]:{_NAME_WIDTH}}" + "".join(f"{cell:>{width}}" for cell, width in zip(row[1:], widths, strict=True))
        for row in rows
    ]
    return "\n".join([f"{scenario}: {measured.titles[scenario]}", *texts])


def _last_the_relay(line: object) -> bool:
    return getattr(line, "broker", "") == CEILING


def _goal(verdict: Verdict) -> str:
    goal = verdict.goal
    look = rate if goal.more_is_better else size if goal.of_size else number
    wanted, found = look(goal.wanted), look(verdict.found)
    return f"  {goal.scenario:20}{goal.figure:18}{wanted:>10}   found {found:>10}   {verdict.text}"
