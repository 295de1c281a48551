"""Draws a run of the overlay: what crossed each link, and what each site got while brokers were killed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from demo.gauges import MIDDLE, NAMES, PUBLISHERS, SUBSCRIBERS, Gauges, Sample, passed, running

# An optional package: type checks must work without it.
matplotlib: Any = import_module("matplotlib")
matplotlib_figure: Any = import_module("matplotlib.figure")

COLOURS = dict(zip(NAMES, ("#444444", "#1f77b4", "#6baed6", "#9ecae1", "#ff7f0e", "#2ca02c"), strict=True))
PLACES = {
    PUBLISHERS: (0.0, 1.0),
    **{name: (1.0, 2.0 - place) for place, name in enumerate(MIDDLE)},
    **{name: (2.0, 1.6 - 1.2 * place) for place, name in enumerate(SUBSCRIBERS)},
}
SMOOTH = 4  # samples that a rate is taken over


def draw(path: Path, gauges: Gauges) -> None:
    """Write the picture."""
    matplotlib.rcParams["svg.hashsalt"] = "slotmq"  # equal figures produce equal files
    figure = matplotlib_figure.Figure(figsize=(11, 9), layout="constrained")
    tree, sites, middle = figure.subplots(3, 1, height_ratios=(5, 4, 4))
    samples = gauges.samples
    _tree(tree, samples)
    _rates(sites, gauges, {name: [one.delivered[name] for one in samples] for name in SUBSCRIBERS})
    sites.set_ylabel("messages to consumers\nper second")
    _rates(middle, gauges, {name: running(passed(one.facts[name]) for one in samples) for name in MIDDLE})
    middle.set_ylabel("messages passed on\nper second")
    middle.set_xlabel("seconds")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _tree(axes: Any, samples: Sequence[Sample]) -> None:
    """Draw brokers and links, with the megabytes that crossed each link on the way to the subscribers."""
    links = [(PUBLISHERS, name) for name in MIDDLE] + [(name, site) for name in MIDDLE for site in SUBSCRIBERS]
    sent = [
        {(name, link["peer"]): link["sent_bytes"] for name in NAMES for link in one.facts[name].get("links", [])}
        for one in samples
    ]
    crossed = {link: max(running(one.get(link, 0) for one in sent), default=0) for link in links}
    most = max(crossed.values()) or 1
    for (one, other), count in crossed.items():
        (x, y), (x2, y2) = PLACES[one], PLACES[other]
        axes.plot([x, x2], [y, y2], color="#9aa5b1", linewidth=0.8 + 7 * count / most, zorder=1, solid_capstyle="round")
        at = 0.5 if one == PUBLISHERS else 0.68
        axes.text(x + at * (x2 - x), y + at * (y2 - y), f"{count / 1e6:,.1f} MB", fontsize=8, ha="center", va="center",
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 1}, zorder=2)  # fmt: skip
    for name, (x, y) in PLACES.items():
        axes.text(x, y, name, fontsize=10, ha="center", va="center", zorder=3, color="white",
                  bbox={"facecolor": COLOURS[name], "edgecolor": "none", "boxstyle": "round,pad=0.5"})  # fmt: skip
    axes.set_xlim(-0.25, 2.25)
    axes.set_ylim(-0.3, 2.3)
    axes.set_axis_off()


def _rates(axes: Any, gauges: Gauges, counts: Mapping[str, Sequence[int]]) -> None:
    """Draw the rate of each count, and a line at each event."""
    times = [sample.at_s for sample in gauges.samples]
    spans = [(max(0, at - SMOOTH), at) for at in range(1, len(times))]
    for name, values in counts.items():
        rates = [(values[at] - values[since]) / (times[at] - times[since]) for since, at in spans]
        axes.plot(times[1:], rates, color=COLOURS[name], label=name, linewidth=1.4)
    axes.set_ylim(0)
    top = axes.get_ylim()[1]
    for at_s, text in gauges.events:
        names, killed, _ = text.partition(" killed")
        axes.axvline(at_s, color="#d62728" if killed else "#2ca02c", linewidth=0.9, linestyle="-" if killed else ":")
        if killed:
            label = f"{names.replace(' and ', f',{chr(10)}')} killed "
            axes.text(at_s, top, label, fontsize=7, va="top", rotation=90, ha="right")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.spines[["top", "right"]].set_visible(False)
