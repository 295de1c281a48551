"""The extent of a run: the paper's experiments, scaled to brokers and clients that share one machine."""

from __future__ import annotations

from dataclasses import dataclass

from bench.stage import extent


@dataclass(frozen=True, slots=True)
class Plan:
    """The extent of a run.

    Units: a cell is measured for `seconds` after an unmeasured `settle_s`. Rates are messages per second: of one
    publisher, of one topic, or of all. `timeline_s` contains the times of the events of the failure test.
    """

    seconds: float = extent(4.0, 1.0)
    settle_s: float = extent(1.0, 0.5)
    subscriptions: int = extent(2_000, 200)
    publishers: tuple[int, ...] = extent((2_000, 4_000, 6_000, 8_000, 10_000, 12_000), (200, 600))
    publisher_per_s: float = 2.0
    hops: tuple[int, ...] = extent((1, 4, 7), (1, 3))
    topic_per_s: float = extent(200.0, 50.0)
    starts: int = extent(24, 4)
    leaves: tuple[int, ...] = extent((1, 2, 3, 4, 5, 6, 7), (1, 2))
    leaves_per_s: float = extent(2_000.0, 300.0)
    failure_per_s: float = extent(2_000.0, 400.0)
    timeline_s: tuple[float, ...] = extent((8.0, 15.0, 23.0, 36.0, 45.0, 57.0), (2.0, 4.0, 6.0, 8.0, 10.0, 12.0))
    rounds: int = extent(3, 1)  # of the cost part
    cost_seconds: float = extent(1.5, 0.5)
