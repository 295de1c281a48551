"""Defines a scenario, and the limits of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bench.brokers import Broker
from bench.run import Figures
from broker.perf import wire
from broker.perf.wire import CONSUME_CHANNEL, CONSUMER_TAG, PUBLISH_CHANNEL

CALL_BYTES = 262_144
"""The most that one read or write moves, for the least number of calls: a socket's buffers hold little more."""
EXCHANGE, BINDING_KEY = "bench", "bench.*.#"
_KEY = "bench.00.00000"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a run.

    A run measures the steady state: before it, every key is published `warm_up_rounds` times, but no longer than
    `warm_up_seconds`, so that one-time costs per key or connection are excluded.

    Units: `lead` is how many messages a publisher without confirms may be ahead of the consumer, which bounds the
    drain; `stock` is the number of queued messages before a drain; `rate` is messages per second of a latency run.
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
    full_seconds=0.6,
    latency_seconds=1.0,
    lone_seconds=0.2,
    connections=200,
    stock=30_000,
    bindings=(3_000,),
    new_keys=10_000,
)


class Scenario(Protocol):
    """One row of the report."""

    @property
    def name(self) -> str:
        """Return the name: a number of the table of goals, and a suffix for its variant."""

    @property
    def title(self) -> str:
        """Return a title of one line for readers."""

    @property
    def stage(self) -> str:
        """Return the stage: scenarios of one stage share brokers, another stage begins with fresh ones."""

    @property
    def rounds(self) -> int:
        """Return the maximum number of runs."""

    @property
    def relayed(self) -> bool:
        """Return whether the bare relay can run it, which shows the cost of kernel and event loop alone."""

    @property
    def record_bytes(self) -> int:
        """Return how many bytes of a message must be on disk before its confirm, 0 for none."""

    def least_calls(self, limits: Limits) -> tuple[float, float] | None:
        """Return the least reads and writes per unit of the scenario in a broker, None if unknown."""

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        """Run the scenario once and return its figures.

        Raises: RunFailed, Fault, OSError, NotStarted; NotOffered.
        """


def message_bytes(body_bytes: int) -> tuple[int, int]:
    """Return the size of a message of the load in bytes, when published and when delivered."""
    body = bytes(body_bytes)
    came = wire.publish(PUBLISH_CHANNEL, EXCHANGE, _KEY, body, persistent=True)
    went = wire.deliver(CONSUME_CHANNEL, CONSUMER_TAG, EXCHANGE, _KEY, body, persistent=True)
    return len(came), len(went)


def size_text(size_bytes: int) -> str:
    """Return a number of bytes in short form: 16 B, 1 KiB, 16 MiB."""
    if size_bytes >= 1 << 20 and size_bytes % (1 << 20) == 0:
        return f"{size_bytes >> 20} MiB"
    return f"{size_bytes // 1024} KiB" if size_bytes >= 1024 and size_bytes % 1024 == 0 else f"{size_bytes:,} B"
