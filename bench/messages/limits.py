"""The limits of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a run.

    A run measures the steady state: before it, every key is published for `warm_up_seconds`, so that one-time costs
    per key are excluded.

    Units: `stock` is the number of queued messages before a drain; `rate` is messages per second of a latency run.
    """

    rounds: int = 3
    seconds: float = 1.2
    warm_up_seconds: float = 0.5
    keys: int = 10_000
    window: int = 1_000
    prefetch: int = 1_000
    ack_every: int = 100
    fanout_seconds: float = 2.0
    rate: int = 1_000
    full_seconds: float = 2.0
    latency_seconds: float = 3.0
    lone_calls: int = 300
    lone_seconds: float = 0.5
    connections: int = 1_000
    stock: int = 1_000_000
    stock_seconds: float = 150.0
    bindings: tuple[int, ...] = (10_000, 100_000)
    bind_seconds: float = 300.0

    @property
    def stall_s(self) -> float:
        """Return after how many seconds a run counts as stalled."""
        return 5 * self.seconds + 30


QUICK = Limits(
    rounds=1,
    seconds=0.6,
    warm_up_seconds=0.3,
    fanout_seconds=1.0,
    full_seconds=0.6,
    latency_seconds=1.0,
    lone_seconds=0.2,
    connections=200,
    stock=30_000,
    bindings=(3_000,),
)
