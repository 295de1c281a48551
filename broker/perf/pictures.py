"""Draws the progress over time and the distribution of latencies, of one result or of several in one picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from broker.figures.axis import Axis, decade_axis, even_axis, percentile_axis, rarest_percent, span_axis
from broker.figures.chart import Line, line_chart
from broker.figures.numerals import digits, duration_text, rate_text, short_text
from broker.perf.result import Interval, Latency, Result

Axes = Callable[[str, list[float], Callable[[float], str]], Axis]
Point = Callable[[str, Interval, float], tuple[float, str] | None]  # of a series in an interval: value, text

_SHORT: Final = 0.2  # of the longest interval
_COUNTS: Final = ("published", "confirmed", "delivered")
_PERCENTILES: Final = ("p50", "p99")


def pictures(results: Sequence[Result], names: Sequence[str]) -> list[str]:
    """Return the charts that the results have figures for."""
    made = []
    for title, lines in _groups(results, names, _COUNTS, ("Messages per second", "Messages {} per second"), _rate):
        shown = [line for line in lines if any(value for _, value, _ in line.points)]
        made += _over_time(title, "per second", shown, even_axis, short_text, nested=len(results) == 1)
    titles = ("Latency, publish to deliver", "Latency {}, publish to deliver")
    for title, lines in _groups(results, names, _PERCENTILES, titles, _percentile):
        made += _over_time(title, "", lines, decade_axis, duration_text)
    return made + _distribution(results, names)


def _groups(
    results: Sequence[Result],
    names: Sequence[str],
    series: Sequence[str],
    titles: tuple[str, str],
    point: Point,
) -> Iterator[tuple[str, list[Line]]]:
    """Yield title and lines of each chart: all series of a single result, or else a chart for each series."""
    if len(results) == 1:
        yield titles[0], [_line(results[0], one, one, colour, point) for colour, one in enumerate(series)]
        return
    named = list(enumerate(zip(results, names, strict=True)))
    for one in series:
        yield titles[1].format(one), [_line(result, one, name, colour, point) for colour, (result, name) in named]


def _line(
    result: Result,
    series: str,
    name: str,
    colour: int,
    point: Point,
) -> Line:
    points = []
    for interval, seconds in _lengths(result.intervals):
        if (found := point(series, interval, seconds)) is not None:
            points.append((interval.at_s, found[0], f"{found[1]} at {interval.at_s:.1f} s"))
    return Line(name, points, colour)


def _rate(series: str, interval: Interval, seconds: float) -> tuple[float, str]:
    per_s = getattr(interval, series) / seconds
    return per_s, rate_text(per_s)


def _percentile(series: str, interval: Interval, _seconds: float) -> tuple[float, str] | None:
    if interval.latency_us is None:
        return None
    us: float = getattr(interval.latency_us, series)
    return us, duration_text(us)


def _lengths(intervals: Sequence[Interval]) -> Iterator[tuple[Interval, float]]:
    """Yield each interval with its length; omit an interval too short for a rate, such as the remainder of a run."""
    begins = [0.0, *(interval.at_s for interval in intervals)]
    lengths = [interval.at_s - begin for interval, begin in zip(intervals, begins, strict=False)]
    least = max((0.0, *lengths)) * _SHORT
    return ((interval, length) for interval, length in zip(intervals, lengths, strict=True) if length > least)


def _over_time(
    title: str, side: str, lines: Sequence[Line], axis: Axes, text: Callable[[float], str], *, nested: bool = False
) -> list[str]:
    times = [at_s for line in lines for at_s, _, _ in line.points]
    if not times:
        return []
    y = axis(side, [value for line in lines for _, value, _ in line.points], text)
    return [line_chart(title, span_axis("seconds", 0.0, max(times), digits), y, lines, nested=nested)]


def _distribution(results: Sequence[Result], names: Sequence[str]) -> list[str]:
    named = [(name, result.latency_us) for result, name in zip(results, names, strict=True)]
    if len(results) == 1:
        named = [("publish to deliver", results[0].latency_us), ("publish to confirm", results[0].confirm_latency_us)]
        named = [(name, latency) for name, latency in named if latency]
    found = [(at, name, latency) for at, (name, latency) in enumerate(named) if latency]
    if not found:
        return []
    lines = [Line(name, _spread(latency), colour) for colour, name, latency in found]
    values = [us for line in lines for _, us, _ in line.points]
    rarest = rarest_percent(max(latency.count for _, _, latency in found))
    x = percentile_axis("percent of the messages that are as fast or faster", rarest)
    return [line_chart("Latency by percentile", x, decade_axis("", values, duration_text), lines)]


def _spread(latency: Latency) -> list[tuple[float, float, str]]:
    fields = ((50.0, "p50"), (75.0, "p75"), (95.0, "p95"), (99.0, "p99"), (99.9, "p99_9"), (100.0, "max"))
    pairs = latency.distribution or [(percent, getattr(latency, name)) for percent, name in fields]
    last = rarest_percent(latency.count)
    return [(min(percent, last), us, f"{percent:.6g} % within {duration_text(us)}") for percent, us in pairs]
