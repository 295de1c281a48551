"""Render results as one self-contained HTML page: headline figures, charts, comparison and options."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from broker.figures.axis import Axis, decade_axis, even_axis, percentile_axis, slowest_percent, span_axis
from broker.figures.chart import Line, line_chart
from broker.figures.markup import Amount, document, escaped, table, tiles
from broker.figures.numerals import count_text, digits, duration_text, rate_text, short_text, size_text
from broker.perf.result import Generator, Interval, Latency, Result
from broker.perf.table import Measure, bottleneck_text, labels, latency_rows, option_texts, rows

Point = Callable[[str, Interval, float], tuple[float, str] | None]  # (series, interval, its length) -> (value, text)

_LENGTH_MIN: Final = 0.2  # of the longest interval; a shorter one gives no meaningful rate
_RATES: Final = ("published", "confirmed", "delivered")
_PERCENTILES: Final = ("p50", "p99")
_COUNTS: Final = ("published", "confirmed", "nacked", "returned", "delivered", "acked")
_TILES: Final = (*_COUNTS, "latency p50", "latency p99", "broker CPU/message", "broker peak memory")
_TILES_MAX: Final = 8


def charts(results: Sequence[Result], names: Sequence[str]) -> list[str]:
    """Return the charts for which the results have figures."""
    per_s = partial(even_axis, "per second", text=short_text)
    rates = _over_time(results, names, "Messages{} per second", _RATES, _rate, per_s, nested=len(results) == 1)
    times = partial(decade_axis, "", text=duration_text)
    latencies = _over_time(results, names, "Latency{}, publish to deliver", _PERCENTILES, _percentile, times)
    return [*rates, *latencies, *_distribution(results, names)]


def _over_time(
    results: Sequence[Result],
    names: Sequence[str],
    title: str,
    series: Sequence[str],
    point: Point,
    axis: Callable[[list[float]], Axis],
    *,
    nested: bool = False,
) -> Iterator[str]:
    """Yield the charts over time: all series of a single result in one chart, or else one chart for each series."""
    contents = [(title.format(""), [(results[0], one, one) for one in series])]
    if len(results) > 1:
        pairs = list(zip(results, names, strict=True))
        contents = [(title.format(f" {one}"), [(result, one, name) for result, name in pairs]) for one in series]
    for shown, members in contents:
        lines = [_line(*member, colour, point) for colour, member in enumerate(members)]
        lines = [line for line in lines if any(value for _, value, _ in line.points)]
        points = [point for line in lines for point in line.points]
        if points:
            y, x = axis([value for _, value, _ in points]), max(at_s for at_s, _, _ in points)
            yield line_chart(shown, span_axis("seconds", 0.0, x, digits), y, lines, nested=nested).figure()


def _line(result: Result, series: str, name: str, colour: int, point: Point) -> Line:
    points = []
    for interval, seconds in _with_lengths(result.intervals):
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


def _with_lengths(intervals: Sequence[Interval]) -> Iterator[tuple[Interval, float]]:
    """Yield each interval with its length, except those too short for a rate, such as the remainder of a run."""
    begins = [0.0, *(interval.at_s for interval in intervals)]
    lengths = [interval.at_s - begin for interval, begin in zip(intervals, begins, strict=False)]
    least = max((0.0, *lengths)) * _LENGTH_MIN
    return ((interval, length) for interval, length in zip(intervals, lengths, strict=True) if length > least)


def _distribution(results: Sequence[Result], names: Sequence[str]) -> list[str]:
    named = [(name, result.latency_us) for result, name in zip(results, names, strict=True)]
    if len(results) == 1:
        named = [("publish to deliver", results[0].latency_us), ("publish to confirm", results[0].confirm_latency_us)]
        named = [(name, latency) for name, latency in named if latency]
    found = [(at, name, latency) for at, (name, latency) in enumerate(named) if latency]
    if not found:
        return []
    lines = [Line(name, _curve(latency), colour) for colour, name, latency in found]
    values = [us for line in lines for _, us, _ in line.points]
    rarest = slowest_percent(max(latency.count for _, _, latency in found))
    x = percentile_axis("percent of the messages that are as fast or faster", rarest)
    return [line_chart("Latency by percentile", x, decade_axis("", values, duration_text), lines).figure()]


def _curve(latency: Latency) -> list[tuple[float, float, str]]:
    last = slowest_percent(latency.count)
    return [(min(at, last), us, f"{at:.6g} % within {duration_text(us)}") for at, us in latency.distribution]


def page(results: Sequence[Result]) -> str:
    """Return the page of one result, or of several side by side. Raises: ValueError for no results."""
    if not results:
        raise ValueError("a page shows at least one result")
    names = labels(results)
    alone = len(results) == 1
    title = f"{' and '.join(dict.fromkeys(result.scenario for result in results))}: {' / '.join(names)}"
    measures, first = rows(results), results[0]
    counted = [name for name in _COUNTS if any(getattr(result.totals, name) for result in results)]
    counts = [{name: count_text(getattr(result.totals, name)) for name in counted} for result in results]
    subtitle = f"{first.started}, {duration_text(first.seconds * 1e6)}" if alone else "Ratios are to the first column."
    drawn = "".join(charts(results, names)) + (_latencies(first) if alone else "")
    parts = [
        f'<header><h1>{escaped(title)}</h1><p class="soft">{escaped(subtitle)}</p></header>\n',
        *(_failures(result, name, alone=alone) for result, name in zip(results, names, strict=True)),
        _tiles(measures) if alone else _comparison(measures, names),
        *(_generator(result, name, alone=alone) for result, name in zip(results, names, strict=True)),
        f'<section class="charts">\n{drawn}</section>\n' if drawn else "",
        '<section class="sheets">' if alone else "",
        _facts("Figures", [{row.name: row.text(0) for row in measures if row.own}], names[:1]) if alone else "",
        _facts("Counts", counts, names),
        _facts("Options", [option_texts(result) for result in results], names),
        _facts("Broker, generator and machine", [_environment(result) for result in results], names),
        "</section>\n" if alone else "",
        _commands(results),
    ]
    return document(title, f"{''.join(parts)}<footer>Made by <code>slotmq perf --plot</code>.</footer>\n")


def _failures(result: Result, name: str, *, alone: bool) -> str:
    of = "" if alone else f" {name}:"
    return "".join(
        f'<p class="note bad"><b>Failed.</b>{escaped(f"{of} {failure}")}</p>\n' for failure in result.failures
    )


def _tiles(measures: Sequence[Measure]) -> str:
    """Return the headline tiles: the common measures, then the scenario's own figures until there are eight."""
    shown = [row for row in measures if row.name in _TILES and not row.own]
    shown += [row for row in measures if row.own][: max(0, _TILES_MAX - len(shown))]
    return tiles([(row.text(0), row.name) for row in shown])


def _comparison(measures: Sequence[Measure], names: Sequence[str]) -> str:
    heads = "".join(f'<th class="measure k{at % 6}">{escaped(name)}</th>' for at, name in enumerate(names))
    body = "".join(
        f"<tr><th>{escaped(row.name)}</th>{''.join(_measure(row, at) for at in range(len(names)))}</tr>\n"
        for row in measures
    )
    head = f"<thead><tr><th></th>{heads}</tr></thead>"
    return f'<div class="wide"><table class="compare">{head}<tbody>\n{body}</tbody></table></div>\n'


def _measure(row: Measure, at: int) -> str:
    ratio = row.ratio(at)
    kind = {True: ' class="good"', False: ' class="bad"', None: ""}[row.better(at)]
    behind = f"<small{kind}>{escaped(ratio)}</small>" if ratio else ""
    width = f'<i style="width:calc((100% - 14px) * {row.share(at):.3f})"></i>' if row.values[at] is not None else ""
    return f'<td class="measure">{width}<b>{escaped(row.text(at))}</b>{behind}</td>'


def _generator(result: Result, name: str, *, alone: bool) -> str:
    if result.generator == Generator():
        return ""
    kind, word = ("bad", "Held up by the generator") if result.generator.bottleneck else ("good", "Generator")
    of = "" if alone else f" of {name}"
    text = bottleneck_text(result.generator)
    return f'<p class="note {kind}"><b>{escaped(word + of)}:</b> {escaped(text)}.</p>\n'


def _latencies(result: Result) -> str:
    """Return a table of the latencies, to stand beside the charts; "" if none were measured."""
    found = latency_rows(result)
    if not found:
        return ""
    head, *rows = zip(*found, strict=True)
    made = table(head, [(name, *map(Amount, cells)) for name, *cells in rows])
    return f"<figure><figcaption>Latency</figcaption>{made}</figure>\n"


def _facts(title: str, columns: Sequence[Mapping[str, str]], names: Sequence[str]) -> str:
    """Return a table of facts with a column for each result, or "" without facts; mark the options that differ."""
    shown = {name: [column.get(name, "") for column in columns] for column in columns for name in column}
    if not any(any(values) for values in shown.values()):
        return ""
    heads = "".join(f"<th>{escaped(name)}</th>" for name in names)
    head = f"<thead><tr><th></th>{heads}</tr></thead>" if len(names) > 1 else ""
    body = "".join(
        f"<tr{' class=differs' if title == 'Options' and len(set(values)) > 1 else ''}><th>{escaped(name)}</th>"
        f"{''.join(f'<td>{escaped(value)}</td>' for value in values)}</tr>\n"
        for name, values in shown.items()
        if any(values)
    )
    made = f'<table class="facts">{head}<tbody>\n{body}</tbody></table>'
    return f'<div class="wide"><h2>{escaped(title)}</h2>{made}</div>\n'


def _environment(result: Result) -> dict[str, str]:
    broker, used, cpu_s, machine = result.broker, result.process, result.generator.cpu_s, result.machine
    return {
        "broker": broker.product,
        "address": f"{broker.host}, port {broker.port}",
        "started": result.started,
        "took": duration_text(result.seconds * 1e6),
        "broker's CPU": duration_text(used.cpu_s * 1e6) if used else "",
        "broker's memory at the end": size_text(used.rss_bytes) if used else "",
        "generator's CPU": duration_text(cpu_s * 1e6) if cpu_s else "",
        "processor": f"{machine.cpu}, {machine.cores} cores" if machine else "",
        "memory": size_text(machine.memory_bytes) if machine else "",
        "system": f"{machine.system}, {machine.python}" if machine else "",
    }


def _commands(results: Sequence[Result]) -> str:
    lines = "".join(
        f"<p><code>slotmq perf {escaped(shlex.join(result.arguments))}</code></p>\n"
        for result in results
        if result.arguments
    )
    return f"<h2>Command</h2>{lines}" if lines else ""
