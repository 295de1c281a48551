"""Says what a scenario is, and how much of everything a run may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bench.brokers import Broker
from bench.meter import Figures

CALL_BYTES = 262_144
"""What one read or write moves at most, for the least number of them: a socket's buffers hold little more."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a run may take.

    A run measures the steady state: before it, every key is published `warm_up_rounds` times, but no longer than
    `warm_up_seconds`, so that no broker pays in it for what it does once per key or connection.

    Units: `lead` is how many messages a publisher without confirms may be ahead of the consumer, it bounds the drain;
    `stock` what lies on a queue before it is drained; `rate` messages per second where latency is measured.
    """

    rounds: int = 3
    messages: int = 500_000
    seconds: float = 1.2
    warm_up_rounds: int = 3
    warm_up_seconds: float = 1.0
    keys: int = 10_000
    window: int = 1_000
    prefetch: int = 1_000
    ack_every: int = 100
    lead: int = 20_000
    fanout_window: int = 1_000
    fanout_seconds: float = 2.0
    rate: int = 1_000
    latency_seconds: float = 3.0
    pairs: int = 8
    connections: int = 1_000
    stock: int = 1_000_000
    stock_seconds: float = 150.0
    bindings: tuple[int, ...] = (10_000, 100_000)
    new_keys: int = 60_000
    bind_seconds: float = 300.0

    @property
    def stall_s(self) -> float:
        """Return after how many seconds a run counts as stalled."""
        return 5 * self.seconds + 30


QUICK = Limits(
    rounds=1,
    seconds=0.6,
    warm_up_seconds=0.5,
    fanout_seconds=1.0,
    latency_seconds=1.0,
    connections=200,
    stock=30_000,
    bindings=(3_000,),
    new_keys=10_000,
)


class Scenario(Protocol):
    """One row of the report."""

    @property
    def name(self) -> str:
        """Return what it is called: a number of the table of goals, and what tells its variants apart."""

    @property
    def title(self) -> str:
        """Return the scenario in a line for people."""

    @property
    def stage(self) -> str:
        """Return which scenarios it shares brokers with: those of another stage begin with fresh ones."""

    @property
    def rounds(self) -> int:
        """Return how often it is run at most."""

    @property
    def relayed(self) -> bool:
        """Return whether the bare relay can run it, which shows what kernel and event loop alone ask."""

    @property
    def record_bytes(self) -> int:
        """Return the bytes of a message that have to be on disk before its confirm; 0 where none have."""

    def least_calls(self, limits: Limits) -> tuple[float, float] | None:
        """Return the least reads and writes that a unit of the scenario asks of a broker, None where nobody says."""

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        """Run it once and return its figures.

        Raises: RunFailed, Fault, OSError, NotStarted.
        """


def size_text(size_bytes: int) -> str:
    """Return a number of bytes as people say it: 16 B, 1 KiB."""
    return f"{size_bytes // 1024} KiB" if size_bytes >= 1024 and size_bytes % 1024 == 0 else f"{size_bytes:,} B"
