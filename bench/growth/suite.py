"""How the cost of a message grows in a large broker, how clients share it, and how long operations delay others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bench.growth import curves, pauses, sharing, soak
from bench.growth.curves import PANELS
from bench.picture import BLUE, ORANGE, plain, spreads
from bench.run import Row, Run
from bench.stage import extent
from bench.suites import Suite
from bench.tables import Column, table, table_of

FLAT: Final = 1.2  # ratio to the cost at the smallest size: "flat within 20 %"
_TITLES: Final = {
    "queues": "queues that receive the messages",
    "backlog": "messages in the queue",
    "consumers": "consumers of one queue",
    "bindings": "bindings of the exchange",
}
_SHARES: Final = {"confirmed_least_share": "published", "delivered_least_share": "delivered"}


@dataclass(frozen=True, slots=True)
class Plan:
    """The extent of a run.

    Units: a cell is measured `rounds` times for `seconds` each, after an unmeasured `settle_s`; all rounds of a light
    client together take `share_factor` times `seconds`.
    """

    queues: tuple[int, ...] = extent((1, 10, 100, 1_000, 10_000), (1, 1_000))
    consumers: tuple[int, ...] = extent((1, 10, 100, 1_000), (1, 100))
    bindings: tuple[int, ...] = extent((10, 100, 1_000, 10_000, 100_000), (10, 10_000))
    backlog: tuple[int, ...] = extent((0, 10_000, 100_000, 1_000_000, 10_000_000), (0, 100_000))
    group: int = extent(1_000_000, 50_000)
    crowd: int = extent(100, 20)
    width: int = extent(20_000, 2_000)
    rounds: int = extent(4, 2)
    seconds: float = extent(1.2, 0.5)
    settle_s: float = 0.2
    share_factor: float = extent(4.0, 3.0)
    soak_s: float = extent(600.0, 20.0)


def curves_of(run: Run) -> dict[tuple[str, str], list[Row]]:
    """Return the rows of each curve, by its panel and title."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in run.rows(*PANELS):
        found.setdefault((row.part, row["title"]), []).append(row)
    return found


def verdict(rows: Iterable[Row]) -> str:
    """Describe a curve: flat, or its ratio at the worst size."""
    worst = max(rows, key=lambda row: float(row["times"] or 0.0))
    times = worst["times"] or 1.0
    return f"flat within {max(0.0, times - 1):.0%}" if times <= FLAT else f"{times:.1f} times at {worst['size']:,}"


def _costs(run: Run) -> str:
    lines = []
    for (panel, title), rows in curves_of(run).items():
        at = ", ".join(f"{row['size']:,}: {row['cpu_us']:.2f}" for row in rows)
        lines.append([f"{panel}: {title}", at, verdict(rows)])
    return table(["", "CPU-µs per message at", ""], lines)


def _light(run: Run) -> str:
    """Return the light client's latencies, its longest one, and the smallest share of another client."""

    def members(row: Row, figure: str) -> str:
        found = run.row("members", title=row["title"])
        if figure == "rate":
            return f"{found['confirmed_per_s']:,.0f}" if found.runs else ""
        return ", ".join(f"{part} {found[name]:.2f}" for name, part in _SHARES.items() if name in found)

    columns = [
        Column("beside", "title", str),
        Column("p50", "p50_ms", "{:.2f} ms".format),
        Column("p99", "p99_ms", "{:.2f} ms".format),
        Column("longest", lambda row: f"{row.spread('max_ms')[1]:.2f} ms"),
        Column("the others' messages/s", lambda row: members(row, "rate")),
        Column("least share of one", lambda row: members(row, "share")),
    ]
    return table_of(run.rows("light"), columns)


def _pauses(run: Run) -> str:
    """Return the longest wait beside each operation, its duration, and the function of its longest turn."""
    columns = [
        Column("", "title", str),
        Column("longest wait", "max_ms", "{:.1f} ms".format),
        Column("CPU meanwhile", "cpu_ms", "{:.1f} ms".format),
        Column("took", "took_ms", "{:,.0f} ms".format),
        Column("CPU of the longest turn", "turn_ms", "{:.1f} ms".format),
        Column("its function", lambda row: run.row("turns", title=row["title"])["function"]),
    ]
    return table_of(run.rows("pauses"), columns)


def _soak(run: Run) -> str:
    row = run.row("soaked")
    if not row.runs:
        return ""
    return (
        f"{row['rounds']:,} rounds of churn: resident memory of {row['start_mb']:.1f} MiB after the start, "
        f"{row['early_mb']:.1f} in the third tenth of the time, {row['late_mb']:.1f} in the last, "
        f"{row['max_mb']:.1f} at most; {row['cpu_s']:.0f} CPU-seconds."
    )


def _silent(run: Run) -> str:
    row = run.row("silent")
    if not row.runs:
        return ""
    return (
        "Beside two consumers that read nothing, one of them on the same queue, a publisher and its consumer have "
        f"{row['rate_ratio']:.2f} of the rate that they have without, and a message costs {row['cost_ratio']:.2f} "
        "times as much."
    )


def _draw(figure: Any, run: Run) -> bool:
    """Draw four panels, the spread of the rounds, and the band that counts as flat."""
    for axes, panel in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        found = {title: rows for (part, title), rows in curves_of(run).items() if part == panel}
        sizes = sorted({row["size"] for rows in found.values() for row in rows})
        places = {size: size or min(sizes[1:], default=1) / 10 for size in sizes}  # 0 is one step below the next size
        for (title, rows), colour in zip(found.items(), (BLUE, ORANGE), strict=False):
            at, costs = [places[row["size"]] for row in rows], [row["cpu_us"] for row in rows]
            axes.fill_between(at, costs[0], costs[0] * FLAT, color=colour, alpha=0.12, linewidth=0)
            axes.plot(at, costs, marker="o", color=colour, label=f"{title}: {verdict(rows)}")
            spreads(axes, at, rows, "cpu_us", colour)
        if sizes:
            axes.set_xscale("log")
            axes.set_xticks(list(places.values()), [f"{size:,}" for size in places], fontsize=8)
            axes.minorticks_off()
            axes.set_ylim(0, axes.get_ylim()[1] * 1.2)
        plain(axes, _TITLES[panel], f"the band is {FLAT - 1:.0%} above the smallest size", "CPU-µs", legend=True)
    return bool(run.rows(*PANELS))


def _draw_soak(figure: Any, run: Run) -> bool:
    rows, axes = run.rows("soak"), figure.subplots()
    axes.plot([row["second"] / 60 for row in rows], [row["rss_mb"] for row in rows], color=BLUE, linewidth=1)
    axes.set_ylim(bottom=0)
    title = "resident memory beside connections, queues, bindings, replies and backlogs that come and go"
    plain(axes, title, "minutes", "MiB")
    return bool(rows)


SUITE: Final = Suite(
    name="growth",
    about=__doc__,
    parts={
        "fairness": sharing.measure,
        "pauses": pauses.measure,
        **{panel: partial(curves.measure, panel=panel) for panel in PANELS},
        "soak": soak.measure,
    },
    plan=Plan(),
    limit_s=900.0,  # the soak begins by then: under half an hour in all
    tables={"cost": _costs, "light": _light, "silent": _silent, "pauses": _pauses, "soak": _soak},
    printed=("cost", "light", "silent", "pauses", "soak"),
    mark="growth",
    pictures={"growth": ((11, 8), _draw), "soak": ((9, 3), _draw_soak)},
)
