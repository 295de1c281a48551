"""Draws the curves: four panels, cost per message over size, a dot for each round, and the band that counts as flat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.growth.curve import FLAT, medians
from bench.growth.curves import PANELS
from bench.growth.tables import verdict
from bench.plot import NoPicture

_COLOURS = ("#1f77b4", "#ff7f0e")
_TITLES = {
    "queues": "queues that the messages go to",
    "backlog": "messages that stand in the queue",
    "consumers": "consumers of one queue",
    "bindings": "bindings of the exchange",
}


def draw(path: Path, content: Mapping[str, Any]) -> Path:
    """Write the picture and return its path. Raises: NoPicture."""
    try:
        library: Any = import_module("matplotlib.figure")  # an optional package: type checks must work without it
        import_module("matplotlib").rcParams["svg.hashsalt"] = "slotmq"  # equal figures produce equal files
    except ImportError:
        raise NoPicture("matplotlib is not installed; it comes with the [bench] extra") from None
    figure = library.Figure(figsize=(11, 8), layout="constrained")
    for axes, panel in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        _panel(axes, panel, [curve for curve in content["curves"] if curve["panel"] == panel])
    found = content["machine"]
    form = "compiled" if content["compiled"] else "interpreted"
    figure.suptitle(
        f"Broker CPU-µs per message, {form}; medians, a dot for each round; the band is {FLAT - 1:.0%} above the "
        f"smallest size\n{found['cores']} cores, {found['cpu']}, Python {found['python']}",
        fontsize=9,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def _panel(axes: Any, panel: str, curves: Sequence[Mapping[str, Any]]) -> None:
    top = 0.0
    places = _places(cell["size"] for curve in curves for cell in curve["cells"])
    for curve, colour in zip(curves, _COLOURS, strict=False):
        costs = medians(curve["cells"], "cpu_us")
        at = [places[size] for size in costs]
        smallest = next(iter(costs.values()))
        axes.fill_between(at, smallest, smallest * FLAT, color=colour, alpha=0.12, linewidth=0)
        axes.plot(at, list(costs.values()), marker="o", color=colour, label=f"{curve['title']}: {verdict(curve)}")
        cells = curve["cells"]
        axes.plot([places[cell["size"]] for cell in cells], [cell["cpu_us"] for cell in cells], ".", color=colour,
                  markersize=3, alpha=0.6)  # fmt: skip
        top = max(top, *costs.values())
    axes.set_xscale("log")
    axes.set_title(_TITLES[panel], fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xticks(list(places.values()), [f"{size:,}" for size in places], fontsize=8)
    axes.minorticks_off()
    if top:
        axes.set_ylim(0, top * 1.35)
        axes.set_ylabel("CPU-µs per message")
        axes.legend(frameon=False, fontsize=8, loc="upper left")


def _places(sizes: Iterable[int]) -> dict[int, float]:
    """Return positions of sizes on a logarithmic scale, with 0 one step below the smallest other size."""
    known = sorted(set(sizes))
    return {size: size or min(known[1:], default=1) / 10 for size in known}
