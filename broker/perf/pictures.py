"""Draws the progress over time and the distribution of latencies, of one result or of several in one picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from broker.figures.axis import Axis, decade_axis, even_axis, percentile_axis, rarest_percent, span_axis
from broker.figures.chart import Line, line_chart
from broker.figures.numerals import digits, duration_text, rate_text, short_text
from broker.perf.result import Interval, Latency, Result

_SHORT = 0.2  # of the longest interval
Count = Callable[[Interval], int]

_COUNTS: tuple[tuple[str, Count], ...] = (
    ("published", lambda interval: interval.published),
    ("confirmed", lambda interval: interval.confirmed),
    ("delivered", lambda interval: interval.delivered),
)


def pictures(results: Sequence[Result], names: Sequence[str]) -> list[str]:
    """Return the charts that the results have figures for."""
    return _throughput(results, names) + _latency(results, names) + _distribution(results, names)


def _throughput(results: Sequence[Result], names: Sequence[str]) -> list[str]:
    if len(results) == 1:
        lines = [
            _rate_line(results[0], name, count, colour)
            for colour, (name, count) in enumerate(_COUNTS)
            if any(count(interval) for interval in results[0].intervals)
        ]
        return _over_time("Messages per second", "per second", lines, even_axis, short_text, nested=True)
    made = []
    for what, count in _COUNTS:
        lines = [
            _rate_line(result, name, count, colour)
            for colour, (result, name) in enumerate(zip(results, names, strict=True))
            if any(count(interval) for interval in result.intervals)
        ]
        made += _over_time(f"Messages {what} per second", "per second", lines, even_axis, short_text)
    return made


def _rate_line(result: Result, name: str, count: Count, colour: int) -> Line:
    points = []
    for interval, seconds in _lengths(result.intervals):
        per_s = count(interval) / seconds
        points.append((interval.at_s, per_s, f"{rate_text(per_s)} at {_time_text(interval.at_s)}"))
    return Line(name, points, colour)


def _lengths(intervals: Sequence[Interval]) -> Iterator[tuple[Interval, float]]:
    """Yield each interval with its length; omit an interval too short for a rate, such as the remainder of a run."""
    begins = [0.0, *(interval.at_s for interval in intervals)]
    lengths = [interval.at_s - begin for interval, begin in zip(intervals, begins, strict=False)]
    least = max((0.0, *lengths)) * _SHORT
    return ((interval, length) for interval, length in zip(intervals, lengths, strict=True) if length > least)


def _latency(results: Sequence[Result], names: Sequence[str]) -> list[str]:
    if len(results) == 1:
        lines = [_latency_line(results[0], name, name, colour) for colour, name in enumerate(("p50", "p99"))]
        return _over_time("Latency, publish to deliver", "", lines, decade_axis, duration_text)
    made = []
    for percentile in ("p50", "p99"):
        lines = [
            _latency_line(result, percentile, name, colour)
            for colour, (result, name) in enumerate(zip(results, names, strict=True))
        ]
        made += _over_time(f"Latency {percentile}, publish to deliver", "", lines, decade_axis, duration_text)
    return made


def _latency_line(result: Result, percentile: str, name: str, colour: int) -> Line:
    points = []
    for interval, _ in _lengths(result.intervals):
        if interval.latency_us is not None:
            us = interval.latency_us.p50 if percentile == "p50" else interval.latency_us.p99
            points.append((interval.at_s, us, f"{duration_text(us)} at {_time_text(interval.at_s)}"))
    return Line(name, points, colour)


def _over_time(
    title: str,
    side: str,
    lines: Sequence[Line],
    axis: Callable[[str, list[float], Callable[[float], str]], Axis],
    text: Callable[[float], str],
    *,
    nested: bool = False,
) -> list[str]:
    times = [at_s for line in lines for at_s, _, _ in line.points]
    if not times:
        return []
    y = axis(side, [value for line in lines for _, value, _ in line.points], text)
    return [line_chart(title, span_axis("seconds", 0.0, max(times), digits), y, lines, nested=nested)]


def _distribution(results: Sequence[Result], names: Sequence[str]) -> list[str]:
    single = len(results) == 1
    lines: list[Line] = []
    counts = []
    for colour, (result, name) in enumerate(zip(results, names, strict=True)):
        for what, latency in (("deliver", result.latency_us), ("confirm", result.confirm_latency_us)):
            if latency is None or (what == "confirm" and not single):
                continue
            counts.append(latency.count)
            at = len(lines) if single else colour
            lines.append(Line(f"publish to {what}" if single else name, _spread(latency), at))
    if not lines:
        return []
    values = [us for line in lines for _, us, _ in line.points]
    x = percentile_axis("percent of the messages that are as fast or faster", rarest_percent(max(counts)))
    return [line_chart("Latency by percentile", x, decade_axis("", values, duration_text), lines)]


def _spread(latency: Latency) -> list[tuple[float, float, str]]:
    pairs = latency.distribution or (
        (50.0, latency.p50),
        (75.0, latency.p75),
        (95.0, latency.p95),
        (99.0, latency.p99),
        (99.9, latency.p99_9),
        (100.0, latency.max),
    )
    last = rarest_percent(latency.count)
    return [(min(percent, last), us, f"{percent:.6g} % within {duration_text(us)}") for percent, us in pairs]


def _time_text(at_s: float) -> str:
    return f"{at_s:.1f} s"
