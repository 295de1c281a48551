"""Defines which figures of a scenario the report shows, and their format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.meter import Figures


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of the report; `look` formats it."""

    title: str
    figure: str
    look: Callable[[float], str]

    def cell(self, figures: Figures) -> str:
        """Return the figure as text, a dash if it is unknown."""
        value = _calls(figures) if self.figure == "calls" else figures.get(self.figure)
        return "-" if value is None else self.look(value)


def number(value: float) -> str:
    """Return a figure in three digits."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or not value else f"{value:.2g}"


def size(value: float) -> str:
    """Return a number of bytes: 512 B, 12.3 kB, 45 MB."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.0f} B"


def rate(value: float) -> str:
    """Return a rate in whole numbers."""
    return f"{value:,.0f}"


def milliseconds(value_us: float) -> str:
    """Return a time in milliseconds."""
    return number(value_us / 1e3)


def kind(scenario: str) -> str:
    """Return what decides how a scenario is shown: its last word if that is full or tls, large, or its number."""
    first, *rest = scenario.split("-")
    if rest and rest[-1] in ("full", "tls"):
        return rest[-1]
    return "large" if rest and rest[0].isdigit() and int(rest[0]) >= _LARGE_BYTES else first


def columns(scenario: str) -> tuple[Column, ...]:
    """Return the columns of a scenario's table."""
    return _SPECIAL.get(kind(scenario), _USUAL)


def is_usual(scenario: str) -> bool:
    """Return whether CPU time per message and messages per second say all about a scenario."""
    return kind(scenario) not in _SPECIAL


def _calls(figures: Figures) -> float | None:
    return figures["reads"] + figures["writes"] if "reads" in figures else None


_LARGE_BYTES = 200_000
_CPU = Column("CPU-us", "cpu_us", number)
_P50 = Column("p50, us", "p50_us", number)
_P99 = Column("p99, us", "p99_us", number)
_RATE = Column("messages/s", "per_s", rate)
_PEAK = Column("peak RSS", "peak_rss_bytes", size)
_DISK = Column("disk", "disk_bytes", size)
_READS_WRITES = Column("reads + writes", "calls", number)
_USUAL = (_RATE, _CPU, _READS_WRITES, _PEAK, _DISK)
_SPECIAL = {
    "S6": (_P50, _P99, _CPU, _READS_WRITES),
    "S7": (
        _RATE,
        _CPU,
        _READS_WRITES,
        Column("RSS growth", "rss_growth_bytes", size),
        _DISK,
        Column("restart, s", "restart_s", number),
        Column("after kill -9, s", "crash_s", number),
        Column("drained/s", "drain_per_s", rate),
        Column("drain CPU-us", "drain_cpu_us", number),
    ),
    "S8": (
        Column("ms to open", "open_ms", number),
        Column("CPU-ms", "open_cpu_ms", number),
        _READS_WRITES,
        Column("memory each", "each_bytes", size),
        _PEAK,
    ),
    "S10": (
        _P50,
        _P99,
        Column("one fdatasync, us", "fdatasync_us", number),
        Column("beyond it, us", "beyond_us", number),
        _RATE,
        _CPU,
        _READS_WRITES,
    ),
    "full": (
        _RATE,
        Column("published/s, times queues", "published_per_s", rate),
        _CPU,
        Column("p50, ms", "p50_us", milliseconds),
        Column("p99, ms", "p99_us", milliseconds),
        Column("left in queues", "queued", rate),
        _PEAK,
    ),
    "tls": (
        Column("plain: messages/s", "plain_per_s", rate),
        Column("plain: CPU-us", "plain_cpu_us", number),
        Column("TLS: messages/s", "per_s", rate),
        Column("TLS: CPU-us", "cpu_us", number),
    ),
    "large": (
        _RATE,
        _CPU,
        _READS_WRITES,
        Column("on its way", "flight_bytes", size),
        Column("memory for it", "held_bytes", size),
        Column("times", "held_times", number),
    ),
    "lone": (
        _P50,
        _P99,
        _CPU,
    ),
    "bindings": (
        Column("s to declare", "declare_s", number),
        Column("CPU-us each", "cpu_us", number),
        Column("memory each", "each_bytes", size),
    ),
}
