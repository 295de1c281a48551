"""The extent of a run of this benchmark: full, or quick."""

from __future__ import annotations

from dataclasses import dataclass

PARTS = ("commands", "archive", "sql", "route", "replay", "latency", "growth")


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes and rounds of each part. Units: bodies have `body_bytes`; a slot file has `slot_rows` messages."""

    rows: int = 2_000_000
    slot_rows: int = 50_000
    keys: int = 20_000
    body_bytes: int = 100
    rounds: int = 5
    """Of all contestants in turn; a further one before them warms up the JVM and does not count."""
    patterns: int = 10_000
    replay_rows: int = 200_000
    replay_rounds: int = 3
    latency_rate: int = 1000
    """Messages per second of the latency measurement."""
    latency_slice_s: float = 10.0
    latency_rounds: int = 4
    growth: tuple[int, ...] = (100_000, 1_000_000, 10_000_000, 100_000_000)
    growth_step: int = 10_000_000
    """Above this size the slots are written, archived and removed in steps, as in a broker whose cursor moves on."""
    driver_memory: str = "1g"
    command_rounds: int = 3
    """Of commands as the shell runs them, each a process; a further one before them does not count."""


WHOLE = Plan()
QUICK = Plan(
    rows=200_000,
    keys=5000,
    rounds=2,
    patterns=1000,
    replay_rows=20_000,
    replay_rounds=1,
    latency_slice_s=3.0,
    latency_rounds=1,
    growth=(10_000, 100_000, 400_000),
    growth_step=200_000,
    command_rounds=1,
)
