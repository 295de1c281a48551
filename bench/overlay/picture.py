"""Draws the experiments beside the paper's figures: a row for each, the paper's on the left, this machine's right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.overlay import paper
from bench.overlay.plan import Row
from bench.overlay.verdicts import of_scheme
from bench.plot import NoPicture

_COLOURS = {"propagation": "#1f77b4", "flooding": "#ff7f0e"}
_LATENCIES = (
    ("delivery_ms", "delivery", "#2ca02c", paper.DELIVERY_MS),
    ("local_ms", "start under a cover", "#1f77b4", paper.LOCAL_MS),
    ("global_ms", "start without", "#d62728", paper.GLOBAL_MS),
)
_MIDDLE = {"ib1": "#1f77b4", "ib2": "#ff7f0e", "ib3": "#2ca02c"}
_GROUPS = {"first": "#1f77b4", "fourth": "#d62728"}
_CPU_TOP = 3.0  # times the median of the busiest: a start takes a whole core for a moment


def draw(path: Path, content: Mapping[str, Any]) -> Path:
    """Write the picture and return its path. Raises: NoPicture."""
    try:
        library: Any = import_module("matplotlib.figure")  # an optional package: type checks must work without it
        import_module("matplotlib").rcParams["svg.hashsalt"] = "slotmq"  # equal figures produce equal files
    except ImportError:
        raise NoPicture("matplotlib is not installed; it comes with the [bench] extra") from None
    figure = library.Figure(figsize=(11, 17), layout="constrained")
    parts = content["parts"]
    rows = figure.subplots(5, 2)
    for (theirs, ours), part, draw_theirs, draw_ours in zip(
        rows,
        ("load", "hops", "leaves", "failure", "failure"),
        (_paper_load, _paper_hops, _paper_leaves, _paper_rates, _paper_cpu),
        (_load, _hops, _leaves, _rates, _cpu),
        strict=True,
    ):
        draw_theirs(theirs)
        if parts.get(part):
            draw_ours(ours, parts[part])
        else:
            ours.set_title("not measured", fontsize=9)
        for axes in (theirs, ours):
            axes.margins(y=0.1)
            axes.set_ylim(0)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=7)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(frameon=False, fontsize=7)
    found = content["machine"]
    form = "compiled" if content["compiled"] else "interpreted"
    figure.suptitle(
        "Left: the paper, as far as its text gives figures (2004, brokers on machines of their own). "
        f"Right: all brokers ({form}) and clients on {found['cores']} cores, {found['cpu']}",
        fontsize=9,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def _name(axes: Any, title: str, across: str, up: str) -> None:
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(across, fontsize=8)
    axes.set_ylabel(up, fontsize=8)


# -- load -------------------------------------------------------------------------------------------------------------


def _paper_load(axes: Any) -> None:
    for scheme, (publishers, share) in paper.LOAD_PB_CPU.items():
        axes.plot([publishers], [share * 100], "*", markersize=11, color=_COLOURS[scheme], label=f"pb, {scheme}")
        axes.plot([0, publishers], [0, share * 100], ":", linewidth=0.8, color=_COLOURS[scheme])
    axes.set_xlim(0, paper.LOAD_PUBLISHERS[1] * 1.05)
    _name(axes, "Figure 4: load, 2,000 subscriptions (grows linearly)", "publishers, 2 messages/s each", "CPU, %")


def _load(axes: Any, rows: Sequence[Row]) -> None:
    for scheme, colour in _COLOURS.items():
        found = of_scheme(rows, scheme)
        across = [row["publishers"] for row in found]
        axes.plot(across, [row["pb_cpu"] * 100 for row in found], "o-", color=colour, label=f"pb (mean), {scheme}")
        axes.plot(across, [row["sb_cpu"] * 100 for row in found], "s--", color=colour, label=f"sb, {scheme}")
    axes.set_xlim(0)
    _name(axes, "here", "publishers", "CPU, % of a core")


# -- latency ----------------------------------------------------------------------------------------------------------


def _paper_hops(axes: Any) -> None:
    for _, name, colour, values in _LATENCIES:
        axes.plot(paper.HOPS, values, "*-", markersize=9, linewidth=0.8, color=colour, label=name)
    axes.set_xticks(paper.HOPS)
    _name(axes, "Figure 5: latency, medians", "hops", "ms")


def _hops(axes: Any, rows: Sequence[Row]) -> None:
    hops = [row["hops"] for row in rows]
    for key, name, colour, _ in _LATENCIES:
        axes.plot(hops, [row[key] for row in rows], "o-", color=colour, label=name)
    axes.set_xticks(hops)
    _name(axes, "here", "hops", "ms")


# -- leaves -----------------------------------------------------------------------------------------------------------


def _paper_leaves(axes: Any) -> None:
    for scheme, colour in _COLOURS.items():
        share = 0.10 + (paper.LEAVES_PB_DIFFERENCE if scheme == "propagation" else 0.0)
        axes.plot([1, 7], [share * 100] * 2, ":", color=colour, label=f"pb, {scheme}")
    axes.set_yticks([])
    axes.set_xlim(0.5, 7.5)
    text = "constant; 3 % apart\n(the text gives no more)"
    _name(axes, "Figure 6: leaves whose subscriptions change", "leaves", "CPU")
    axes.text(4, 5, text, ha="center", fontsize=8)


def _leaves(axes: Any, rows: Sequence[Row]) -> None:
    for scheme, colour in _COLOURS.items():
        found = of_scheme(rows, scheme)
        for broker, line in (("pb", "o-"), ("ib", "^:"), ("sb", "s--")):
            shares = [row[broker] * 100 for row in found]
            axes.plot([row["leaves"] for row in found], shares, line, color=colour, label=f"{broker}, {scheme}")
    axes.set_xticks(sorted({row["leaves"] for row in rows}))
    _name(axes, "here", "leaves", "CPU, % of a core")


# -- failure ----------------------------------------------------------------------------------------------------------


def _paper_rates(axes: Any) -> None:
    begin, end = paper.FAILURE_BEGIN_S, paper.FAILURE_END_S
    first, fourth = paper.FAILURE_RATES
    axes.plot([begin, end], [first] * 2, color=_GROUPS["first"], label="one of the first three groups")
    at_s = paper.FAILURE_EVENTS_S[2]
    axes.plot([begin, at_s, at_s, end], [0, 0, fourth, fourth], color=_GROUPS["fourth"], label="fourth group")
    _mark(axes, paper.FAILURE_EVENTS_S)
    _name(axes, "Figure 7(a): rates of clients", "s", "messages/s")


def _rates(axes: Any, rows: Sequence[Row]) -> None:
    row = rows[-1]
    for group, colour in _GROUPS.items():
        axes.plot(range(len(row["rates"][group])), row["rates"][group], color=colour, label=f"{group} group")
    _mark(axes, [at_s for at_s, _ in row["events"]])
    _name(axes, "here: ib1, ib2 killed; a new group; ib1, ib2 back", "s", "messages/s")


def _paper_cpu(axes: Any) -> None:
    begin, end = paper.FAILURE_BEGIN_S, paper.FAILURE_END_S
    first, second, *_ = paper.FAILURE_EVENTS_S
    none, some, both = (share * 100 for share in paper.FAILURE_IB3_CPU)
    axes.plot([begin, first, first, second, second, paper.FAILURE_EVENTS_S[2]], [none, none, some, some, both, both],
              color=_MIDDLE["ib3"], label="ib3")  # fmt: skip
    axes.plot([begin, first], [some] * 2, color=_MIDDLE["ib1"], label="ib1")
    axes.plot([begin, second], [some] * 2, "--", color=_MIDDLE["ib2"], label="ib2")
    axes.set_xlim(begin, end)
    _mark(axes, paper.FAILURE_EVENTS_S)
    _name(axes, "Figure 7(b): CPU of the brokers in the middle", "s", "CPU, %")


def _cpu(axes: Any, rows: Sequence[Row]) -> None:
    row = rows[-1]
    for broker, colour in _MIDDLE.items():
        shares = [share * 100 for share in row["cpu"][broker]]
        axes.plot([at + 0.5 for at in range(len(shares))], shares, color=colour, label=broker)
    ordinary = sorted(share for shares in row["cpu"].values() for share in shares)
    if ordinary:
        axes.set_ylim(0, max(1.0, _CPU_TOP * 100 * ordinary[len(ordinary) // 2]))
    _mark(axes, [at_s for at_s, _ in row["events"]])
    _name(axes, "here (a start exceeds the picture)", "s", "CPU, % of a core")


def _mark(axes: Any, times_s: Sequence[float]) -> None:
    for at_s in times_s:
        axes.axvline(at_s, color="#999999", linewidth=0.6, linestyle=":")
