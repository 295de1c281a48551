"""The limits of a run."""

from __future__ import annotations

from dataclasses import dataclass

from bench.stage import extent


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a run.

    A run measures the steady state: before it, every key is published for `warm_up_seconds`, so that one-time costs
    per key are excluded.

    Units: `stock` is the number of queued messages before a drain; `rate` is messages per second of a latency run.
    """

    rounds: int = extent(3, 1)
    seconds: float = extent(1.2, 0.6)
    warm_up_seconds: float = extent(0.5, 0.3)
    keys: int = 10_000
    window: int = 1_000
    prefetch: int = 1_000
    ack_every: int = 100
    fanout_seconds: float = extent(2.0, 1.0)
    rate: int = 1_000
    full_seconds: float = extent(2.0, 0.6)
    latency_seconds: float = extent(3.0, 1.0)
    lone_calls: int = 300
    lone_seconds: float = extent(0.5, 0.2)
    connections: int = extent(1_000, 200)
    stock: int = extent(1_000_000, 30_000)
    stock_seconds: float = 150.0
    bindings: tuple[int, ...] = extent((10_000, 100_000), (3_000,))
    bind_seconds: float = 300.0

    @property
    def stall_s(self) -> float:
        """After how many seconds a run counts as stalled."""
        return 5 * self.seconds + 30
