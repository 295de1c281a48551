"""The extent of a run: the paper's experiments, scaled to brokers and clients that share one machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """The extent of a run.

    Units: a cell is measured for `seconds` after `settle_s` that do not count. Rates are messages per second: of one
    publisher, of one topic, or of all. `timeline_s` has the times at which the events of the failure test happen.
    """

    seconds: float = 4.0
    settle_s: float = 1.0
    subscriptions: int = 2_000
    publishers: tuple[int, ...] = (2_000, 4_000, 6_000, 8_000, 10_000, 12_000)
    publisher_per_s: float = 2.0
    hops: tuple[int, ...] = (1, 4, 7)
    topic_per_s: float = 200.0
    starts: int = 24
    leaves: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    leaves_per_s: float = 2_000.0
    failure_per_s: float = 2_000.0
    timeline_s: tuple[float, ...] = (8.0, 15.0, 23.0, 36.0, 45.0, 57.0)
    rounds: int = 3  # of the cost part
    cost_seconds: float = 1.5


FULL = Plan()
QUICK = Plan(
    seconds=1.0,
    settle_s=0.5,
    subscriptions=200,
    publishers=(200, 600),
    hops=(1, 3),
    topic_per_s=50.0,
    starts=4,
    leaves=(1, 2),
    leaves_per_s=300.0,
    failure_per_s=400.0,
    timeline_s=(2.0, 4.0, 6.0, 8.0, 10.0, 12.0),
    rounds=1,
    cost_seconds=0.5,
)
