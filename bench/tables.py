"""Formats a stored run as tables of Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bench.columns import columns, is_usual, kind, number, rate
from bench.measured import CEILING, COMPILED, INTERPRETED, PEER, Measured
from bench.topics.tables import table

_OTHER = ("S6", "S7", "S8", "S10", "bindings")
"""Kinds of scenarios with a table for each scenario; the other special kinds have one table each."""


def _cost(measured: Measured) -> str:
    """Return CPU time per message and messages per second, one line for each scenario that has them."""
    brokers = [name for name in (COMPILED, INTERPRETED, PEER) if name in measured.brokers]
    brokers += [name for name in measured.brokers if name not in brokers]
    lines = []
    for scenario, title in _usual(measured):
        cells = [_pair(measured, broker, scenario) for broker in brokers]
        times = [_times(measured, broker, scenario) for broker in brokers if broker != PEER]
        lines.append([f"{scenario}: {title}", *cells, *times])
    ratios = [f"{broker} : {PEER}" for broker in brokers if broker != PEER]
    return table(["", *(f"{broker}, CPU-us / messages/s" for broker in brokers), *ratios], lines)


def _other(measured: Measured) -> str:
    """Return a table for each scenario with figures of its own."""
    tables = []
    for scenario, title in measured.titles.items():
        if kind(scenario) in _OTHER:
            shown = columns(scenario)
            brokers = [name for name in (*measured.brokers, CEILING) if measured.figures(name, scenario)]
            lines = [
                [_shown(name), *(column.cell(measured.figures(name, scenario)) for column in shown)] for name in brokers
            ]
            if lines:
                tables.append(
                    f"{scenario}: {title}\n\n{table(['', *(column.title for column in shown)], lines)}",
                )
    return "\n\n".join(tables)


def machine(content: Mapping[str, Any]) -> str:
    """Return a description of the machine in one sentence."""
    found, steps = content["machine"], [run["step_ns"] for run in content["runs"]]
    said = (
        f"{found['cores']} cores, {found['cpu']}, {found['memory_gib']} GiB, Linux {found['kernel']}, "
        f"{found['file_system']}, one fdatasync {found['fdatasync_us']} us; Python {found['python']}. "
        f"Measured: {', '.join(sorted(set(content['products'].values())))}; {content['limits']['rounds']} rounds, "
        f"{content['seconds']:.0f} s in all."
    )
    if content["quick"]:
        said += " A quick run with small numbers: nothing to judge by."
    if steps:
        low, high = min(steps), max(steps)
        said += f" A step of a fixed Python loop took {low:.0f} to {high:.0f} ns (x {high / low:.1f}) meanwhile."
    return said


def summary(content: Mapping[str, Any]) -> str:
    """Return the most significant figures in two sentences: ratios to RabbitMQ, and rates."""
    measured, products = Measured.of(content), content["products"]
    peer = products.get(PEER, PEER)
    said = []
    ranges = [
        (_range_of_times(measured, size), words)
        for size, words in ((16, "16-byte messages"), (1024, "messages of 1 KiB"))
    ]
    ratios = [f"{times} times as many {words}" for times, words in ranges if times]
    if ratios:
        said.append(f"Per CPU-second, {_called(measured.ours)} handles {' and '.join(ratios)} as {peer}.")
    rates = [
        f"{_rounded(per_s)} {words} (S{number})"
        for number, words in ((1, "transient"), (3, "persistent"))
        if (per_s := measured.figures(measured.ours, f"S{number}-16").get("per_s"))
    ]
    if rates:
        said.append(
            f"One broker uses one core, and on this machine takes {' or '.join(rates)} small messages per second."
        )
    return " ".join(said)


def _range_of_times(measured: Measured, size: int) -> str:
    """Return the ratios to RabbitMQ of S1 to S4, as "lowest to highest"."""
    names = [f"S{number}-{size}" for number in (1, 2, 3, 4)]
    times = [found for name in names if (found := measured.times_of_peer(measured.ours, name))]
    return f"{min(times):.0f} to {max(times):.0f}" if times else ""


def _called(broker: str) -> str:
    return (
        "the compiled broker" if broker == COMPILED else "the interpreted broker" if broker == INTERPRETED else broker
    )


def _rounded(per_s: float) -> str:
    """Return a rate in two digits: 380,000."""
    return f"{float(f'{per_s:.1e}'):,.0f}"


def _usual(measured: Measured) -> list[tuple[str, str]]:
    return [
        (scenario, title)
        for scenario, title in measured.titles.items()
        if is_usual(scenario) and any(line.scenario == scenario for line in measured.lines)
    ]


def _pair(measured: Measured, broker: str, scenario: str) -> str:
    figures = measured.figures(broker, scenario)
    return f"{_known(figures.get('cpu_us'), number)} / {_known(figures.get('per_s'), rate)}"


def _times(measured: Measured, broker: str, scenario: str) -> str:
    times = measured.times_of_peer(broker, scenario)
    return "-" if times is None else f"{times:.1f}"


def _known(value: float | None, look: Callable[[float], str]) -> str:
    return "-" if value is None else look(value)


def _shown(broker: str) -> str:
    return "(bare relay)" if broker == CEILING else broker


TABLES: dict[str, Callable[[Measured], str]] = {
    "cost": _cost,
    "other": _other,
}
"""The tables by the names of their places on the page."""


TEXTS: dict[str, Callable[[Mapping[str, Any]], str]] = {"machine": machine, "summary": summary}
"""The places with a text instead of a table."""
