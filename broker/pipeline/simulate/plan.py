"""Which overlays are simulated: each with its size, its subscriptions and how much of a broker it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, Final

__all__ = ["LARGE_BROKERS", "MESSAGES", "TABLES", "SimulationPlan", "default_plans", "product_plans"]

TABLES: Final = "tables"
"""Every broker runs the shipped interest alone: what it announces, and where it would send a message."""

MESSAGES: Final = "messages"
"""Every broker runs whole, with streams, acknowledgements and repairs."""

BROKERS: Final = (10, 30, 100, 300)
SUBSCRIPTIONS: Final = (100, 1_000, 10_000, 100_000, 1_000_000, 1_000_000_000)
REDUNDANCIES: Final = (1, 2, 3)
AGGREGATIONS: Final = ("none", "identical", "covering")
WHOLE_BROKERS: Final = (10, 30, 100)

FULL_BROKERS: Final = (*BROKERS, 1_000, 3_000, 10_000)
FULL_WHOLE_BROKERS: Final = (*WHOLE_BROKERS, 300, 1_000)
LARGE_BROKERS: Final = {TABLES: 1_000, MESSAGES: 100}
"""Above this number of brokers a task may take minutes, by level."""


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """One overlay to simulate.

    Shapes: `level` is TABLES or MESSAGES, `aggregation` a value of the setting `overlay.aggregation`, `redundancy` the
        brokers of each inner tree node, `subscriptions` those of all clients together, `patterns_max` the setting
        `overlay.patterns_max`.
    """

    brokers: int = 100
    subscriptions: int = 1_000_000
    redundancy: int = 2
    aggregation: str = "covering"
    level: str = TABLES
    fan_out: int = 10
    patterns: int = 1_000
    patterns_max: int = 10_000
    messages: int = 500
    seed: int = 1

    @property
    def weight(self) -> int:
        """Return a number that rises with the time that the simulation takes."""
        return self.brokers**2 * self.redundancy**2 * (20 if self.level == MESSAGES else 1)

    @property
    def large(self) -> bool:
        """Return whether the simulation may take minutes."""
        return self.brokers > LARGE_BROKERS[self.level]

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def default_plans(base: SimulationPlan, *, full: bool) -> list[SimulationPlan]:
    """Return plans that vary one field of `base` at a time, the largest first, so that the last tasks are short."""
    found = [replace(base, brokers=brokers) for brokers in (FULL_BROKERS if full else BROKERS)]
    found += [replace(base, subscriptions=subscriptions) for subscriptions in SUBSCRIPTIONS]
    found += [replace(base, redundancy=redundancy) for redundancy in REDUNDANCIES]
    found += [replace(base, aggregation=aggregation) for aggregation in AGGREGATIONS]
    whole = replace(base, level=MESSAGES)
    found += [replace(whole, brokers=brokers) for brokers in (FULL_WHOLE_BROKERS if full else WHOLE_BROKERS)]
    return _largest_first(found)


def product_plans(base: SimulationPlan, choices: Mapping[str, Sequence[Any]]) -> list[SimulationPlan]:
    """Return a plan for each combination of the given values, the largest first."""

    def combined() -> Iterator[SimulationPlan]:
        for values in product(*choices.values()):
            yield replace(base, **dict(zip(choices, values, strict=True)))

    return _largest_first(combined())


def _largest_first(plans: Iterator[SimulationPlan] | Sequence[SimulationPlan]) -> list[SimulationPlan]:
    return sorted(dict.fromkeys(plans), key=lambda plan: -plan.weight)
