"""Names what is measured: the scenarios of the first benchmark and how long each may run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way of publishing and consuming: topic exchange, one publisher, one consumer, one queue."""

    name: str
    body_bytes: int
    persistent: bool  # delivery mode 2, durable exchange and queue
    confirms: bool  # a window of unconfirmed messages; without, the publisher sends what the socket takes
    acks: bool  # manual acks, `multiple`, with a prefetch; without, the consumer is auto-ack

    @property
    def title(self) -> str:
        """Return the scenario in a line for people."""
        kind = "persistent" if self.persistent else "transient"
        confirmed = ", confirms" if self.confirms else ""
        size = f"{self.body_bytes} B" if self.body_bytes < 1024 else f"{self.body_bytes // 1024} KiB"
        return f"{kind}{confirmed}, {'manual ack' if self.acks else 'auto-ack'}, {size}"


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a run may take.

    A run measures the steady state: before it, every key is published `warm_up_rounds` times, but no longer than
    `warm_up_seconds`, so that no broker pays in it for what it does once per key or connection.

    Units: `lead` is how many messages a publisher without confirms may be ahead of the consumer; it bounds the drain.
    """

    messages: int = 500_000
    seconds: float = 3.0
    warm_up_rounds: int = 3
    warm_up_seconds: float = 2.0
    keys: int = 10_000
    window: int = 1_000
    prefetch: int = 1_000
    ack_every: int = 100
    lead: int = 20_000

    @property
    def stall_s(self) -> float:
        """Return after how many seconds a run counts as stalled."""
        return 5 * self.seconds + 30


SCENARIOS = tuple(
    Scenario(f"{name}-{size}", size, persistent=persistent, confirms=confirms, acks=confirms)
    for name, persistent, confirms in (
        ("persistent", True, True),  # what the goal judges comes first, in case time runs out
        ("confirmed", False, True),
        ("transient", False, False),
    )
    for size in (16, 1024)
)
