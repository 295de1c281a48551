"""The extent of a run of the growth bench."""

from __future__ import annotations

from dataclasses import dataclass

KEYS = 10_000  # distinct keys of every curve, so that caches are equally full everywhere


@dataclass(frozen=True, slots=True)
class Plan:
    """The extent of a run.

    Units: a cell is measured `rounds` times for `seconds` each, after `settle_s` that do not count; the rounds of a
    light client take `share_factor` times `seconds` together.
    """

    queues: tuple[int, ...] = (1, 10, 100, 1_000, 10_000)
    consumers: tuple[int, ...] = (1, 10, 100, 1_000)
    bindings: tuple[int, ...] = (10, 100, 1_000, 10_000, 100_000)
    backlog: tuple[int, ...] = (0, 10_000, 100_000, 1_000_000, 10_000_000)
    crowd: int = 100
    width: int = 20_000
    rounds: int = 4
    seconds: float = 1.2
    settle_s: float = 0.2
    share_factor: float = 4.0


FULL = Plan()
QUICK = Plan(
    queues=(1, 1_000),
    consumers=(1, 100),
    bindings=(10, 10_000),
    backlog=(0, 100_000),
    crowd=20,
    width=2_000,
    rounds=2,
    seconds=0.5,
    share_factor=3.0,
)
