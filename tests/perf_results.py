"""Made-up results of runs, to test their presentation."""

from __future__ import annotations

from typing import Any

from broker.perf.histogram import Histogram
from broker.perf.machine import MachineFacts
from broker.perf.result import (
    BrokerFacts,
    Figure,
    Generator,
    Interval,
    Latency,
    LatencyPair,
    ProcessUse,
    Result,
    RunTotals,
)


def histogram(*values_us: int) -> Histogram:
    """Return a histogram that counted each value once."""
    made = Histogram()
    for value_us in values_us:
        made.record(value_us * 1000)
    return made


def result(product: str = "SlotMQ 1.0", per_s: int = 1000, seconds: int = 4, **changes: Any) -> Result:
    """Return the result of a run at a steady rate with all measurements."""
    total = per_s * seconds
    times = histogram(*range(1, 1001))
    values: dict[str, Any] = {
        "scenario": "throughput",
        "arguments": ("throughput", "-x", "2", "-u", "a queue"),
        "started": "2026-01-02T03:04:05Z",
        "broker": BrokerFacts(product, "127.0.0.1", 5672),
        "options": {"producers": 2, "rate": None, "flags": ["persistent"]},
        "seconds": float(seconds),
        "intervals": tuple(
            Interval(float(at), per_s, per_s, per_s, LatencyPair(100.0, 900.0)) for at in range(1, seconds + 1)
        ),
        "totals": RunTotals(total, total, 0, 0, total, total, per_s, per_s, per_s, total * 16, total * 16),
        "latency_us": Latency.of(times),
        "confirm_latency_us": Latency.of(times),
        "generator": Generator(1.5, 0.25, 2_000_000.0, bottleneck=False),
        "process": ProcessUse(2.0, 2.0 / total * 1e6, 50 << 20, 60 << 20),
        "machine": MachineFacts("a processor", 2, 4 << 30, "Linux 6.1", "CPython 3.11.7"),
        "figures": {"messages_per_cpu_second": Figure(total / 2.0, "per_s")},
    }
    return Result(**(values | changes))


def bare(**changes: Any) -> Result:
    """Return the result of a run with almost no measurements."""
    return Result("connections", (), "2026-01-02T03:04:05Z", BrokerFacts("", "::1", 1), {}, 0.0, **changes)
