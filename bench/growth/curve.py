"""One curve: the cost of a message over a size, its measurements, and whether it is flat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.growth.herd import Herd
from broker.perf.peer import Address

FLAT = 1.2  # ratio to the cost at the smallest size: "flat within 20 %"

Cell = dict[str, float]
"""One measurement, by names that end with their unit."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A measurement and its sizes.

    Shapes: `prepare(address, size, tell)` sets up the load on a new broker; `warm_up(size)` is how many messages
    precede it.
    """

    panel: str
    name: str
    title: str
    sizes: tuple[int, ...]
    prepare: Callable[[Address, int, Callable[[str], None]], Herd]
    warm_up: Callable[[int], int]


def growth(cells: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Return the ratio of each size's cost to the smallest size's: the median of the ratios of all rounds.

    Shapes: `cells` have "size", "round" and "cpu_us". A round measures all sizes one after the other, so changes of
    the machine's speed affect both sides of a ratio.
    """
    rounds: dict[int, dict[int, float]] = {}
    for cell in cells:
        rounds.setdefault(cell["round"], {})[cell["size"]] = cell["cpu_us"]
    smallest = min((cell["size"] for cell in cells), default=0)
    ratios: dict[int, list[float]] = {}
    for costs in rounds.values():
        for size, cost in costs.items():
            if costs.get(smallest):
                ratios.setdefault(size, []).append(cost / costs[smallest])
    return {size: median(values) for size, values in sorted(ratios.items())}


def medians(cells: Sequence[Mapping[str, Any]], name: str) -> dict[int, float]:
    """Return the median of a figure for each size."""
    found: dict[int, list[float]] = {}
    for cell in cells:
        found.setdefault(cell["size"], []).append(cell[name])
    return {size: median(values) for size, values in sorted(found.items())}


def worst(cells: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
    """Return the size with the highest cost relative to the smallest size, and the ratio."""
    ratios = growth(cells)
    size = max(ratios, key=lambda one: ratios[one])
    return size, ratios[size]
