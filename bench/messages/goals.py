"""The floors and goals of the suite. A goal is judged as it stands, whatever the machine."""

from __future__ import annotations

from dataclasses import dataclass

FLOORS = {
    **dict.fromkeys(("S1-16", "S2-16", "S3-16", "S4-16"), 15.0),
    **dict.fromkeys(("S1-1024", "S2-1024", "S3-1024", "S4-1024", "S5-10k", "S5-100k"), 10.0),
}
"""The minimum ratio to RabbitMQ's messages per broker CPU-second."""
NUMBERED = ("S5-100k", "S7", "S8", "bindings")
"""Scenarios whose figures depend on how many there are: a quick run does not judge them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The goal of one figure of one scenario. Units: those of the figure's name."""

    scenario: str
    figure: str
    wanted: float


_LATENCY_US = 50_000.0  # p99 from sent until delivered, beside a publisher at full speed
_NAGLE_US = 2_000.0

GOALS = (
    Wanted("S1-16", "cpu_us", 1.51),
    Wanted("S1-1024", "cpu_us", 3.5),
    Wanted("S2-16", "cpu_us", 3.0),
    Wanted("S2-1024", "cpu_us", 5.9),
    Wanted("S3-16", "cpu_us", 1.8),
    Wanted("S3-1024", "cpu_us", 3.5),
    Wanted("S4-16", "cpu_us", 0.6),
    Wanted("S4-1024", "cpu_us", 1.2),
    Wanted("S1-16-full", "cpu_us", 1.51),
    Wanted("S1-1024-full", "cpu_us", 3.5),
    Wanted("S4-16-full", "cpu_us", 0.6),
    Wanted("S4-1024-full", "cpu_us", 1.2),
    *(Wanted(f"{kind}-{size}-full", "p99_us", _LATENCY_US) for kind in ("S1", "S2", "S4") for size in (16, 1024)),
    Wanted("S2-204800", "cpu_us", 120.0),
    *(Wanted(f"S2-{size}", "held_times", 2.0) for size in (204_800, 1 << 20, 16 << 20)),
    Wanted("S5-10k", "cpu_us", 3.0),
    Wanted("S5-100k", "cpu_us", 5.0),
    Wanted("S6-16", "cpu_us", 70.0),
    Wanted("S6-16", "relay_times", 1.3),
    Wanted("S7", "cpu_us", 2.5),
    Wanted("S7", "rss_growth_bytes", 60e6),
    Wanted("S7", "drain_per_s", 500e3),
    Wanted("S7", "restart_s", 0.5),
    Wanted("S8", "open_cpu_ms", 0.3),
    Wanted("S8", "each_bytes", 5500.0),
    Wanted("S9", "cpu_us", 12.0),
    Wanted("S10", "beyond_us", 100.0),
    Wanted("lone-nagle-connect", "p50_us", _NAGLE_US),
    Wanted("lone-nagle-get", "p50_us", _NAGLE_US),
    Wanted("bindings", "declare_s", 2.0),
    Wanted("bindings", "each_bytes", 500.0),
)
