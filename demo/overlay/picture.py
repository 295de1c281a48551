"""Draws a run: what crossed each link, and what each site got while brokers were killed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from demo.overlay.gauges import Gauge, Gauges, Sample
from demo.overlay.sites import MIDDLE, NAMES, PUBLISHERS, SUBSCRIBERS

COLOURS = dict(zip(NAMES, ("#444444", "#1f77b4", "#6baed6", "#9ecae1", "#ff7f0e", "#2ca02c"), strict=True))
PLACES = {
    PUBLISHERS: (0.0, 1.0),
    **{name: (1.0, 2.0 - place) for place, name in enumerate(MIDDLE)},
    **{name: (2.0, 1.6 - 1.2 * place) for place, name in enumerate(SUBSCRIBERS)},
}
SMOOTH = 4  # samples that a rate is taken over


class NoPicture(Exception):
    """matplotlib is not installed."""


def figure_module() -> Any:
    """Return matplotlib's figures. Raises: NoPicture."""
    try:
        library: Any = import_module("matplotlib.figure")  # an optional package: type checks must work without it
        import_module("matplotlib").rcParams["svg.hashsalt"] = "slotmq"  # equal figures produce equal files
    except ImportError:
        raise NoPicture("matplotlib is not installed; it comes with the [bench] extra") from None
    return library


def draw(path: Path, gauges: Gauges) -> None:
    """Write the picture. Raises: NoPicture."""
    figure = figure_module().Figure(figsize=(11, 9), layout="constrained")
    tree, sites, middle = figure.subplots(3, 1, height_ratios=(5, 4, 4))
    _tree(tree, gauges.samples)
    _rates(sites, gauges, {name: [one.delivered[name] for one in gauges.samples] for name in SUBSCRIBERS})
    sites.set_ylabel("messages to consumers\nper second")
    passed = {name: running(one.gauges[name] for one in gauges.samples) for name in MIDDLE}
    _rates(middle, gauges, passed)
    middle.set_ylabel("messages passed on\nper second")
    middle.set_xlabel("seconds")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _tree(axes: Any, samples: Sequence[Sample]) -> None:
    """Draw brokers and links, with the megabytes that crossed each link on the way to the subscribers."""
    crossed = {(one, other): 0 for one in NAMES for other in NAMES}
    for name in NAMES:
        for before, now in pairwise([sample.gauges[name].bytes_to for sample in samples]):
            for peer, count in now.items():
                crossed[name, peer] += count - before.get(peer, 0) if count >= before.get(peer, 0) else count
    most = max(crossed.values(), default=0) or 1
    links = [(PUBLISHERS, name) for name in MIDDLE] + [(name, site) for name in MIDDLE for site in SUBSCRIBERS]
    for one, other in links:
        (x, y), (x2, y2) = PLACES[one], PLACES[other]
        count = crossed[one, other]
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


def running(gauges: Iterable[Gauge]) -> list[int]:
    """Return how many messages a broker in the middle has passed on, through the restarts of its process."""
    total, before, sums = 0, 0, []
    for gauge in gauges:
        now = _passed(gauge) if gauge.state == "up" else 0
        total += now - before if now >= before else now
        before = now
        sums.append(total)
    return sums


def _passed(gauge: Gauge) -> int:
    return gauge.matched + gauge.flooded


def _rates(axes: Any, gauges: Gauges, counts: Mapping[str, Sequence[int]]) -> None:
    """Draw the rate of each count, and a line at each event."""
    times = [sample.at_s for sample in gauges.samples]
    for name, values in counts.items():
        spans = [(max(0, at - SMOOTH), at) for at in range(1, len(times))]
        rates = [(values[at] - values[since]) / (times[at] - times[since]) for since, at in spans]
        axes.plot(times[1:], rates, color=COLOURS[name], label=name, linewidth=1.4)
    for at_s, text in gauges.events:
        killed = "killed" in text
        axes.axvline(at_s, color="#d62728" if killed else "#2ca02c", linewidth=0.9, linestyle="-" if killed else ":")
    axes.set_ylim(0)
    top = axes.get_ylim()[1]
    for at_s, text in gauges.events:
        if "killed" in text:
            names = text.partition(" killed")[0].replace(" and ", ",\n")
            axes.text(at_s, top, f"{names} killed ", fontsize=7, va="top", rotation=90, ha="right")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.spines[["top", "right"]].set_visible(False)
