"""Render a result as text, or several side by side: counts, rates, latencies, and the resources used."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.figures.markup import plain
from broker.figures.numerals import (
    count_text,
    digits,
    duration_text,
    figure_text,
    rate_text,
    ratio_text,
    share_text,
    size_text,
)
from broker.perf.result import Generator, Result

_INSIGNIFICANT: Final = 0.05  # a smaller relative difference is neither better nor worse
_LESS_IS_BETTER: Final = frozenset({"us", "s", "bytes"})
_MEASURES: Final = (  # name, unit, part of the result, field of the part
    ("published", "per_s", "totals", "publish_per_s"),
    ("confirmed", "per_s", "totals", "confirm_per_s"),
    ("delivered", "per_s", "totals", "deliver_per_s"),
    ("latency p50", "us", "latency_us", "p50"),
    ("latency p95", "us", "latency_us", "p95"),
    ("latency p99", "us", "latency_us", "p99"),
    ("latency p99.9", "us", "latency_us", "p99_9"),
    ("latency max", "us", "latency_us", "max"),
    ("confirm latency p50", "us", "confirm_latency_us", "p50"),
    ("confirm latency p99", "us", "confirm_latency_us", "p99"),
    ("broker CPU/message", "us", "process", "cpu_us_per_message"),
    ("broker peak memory", "bytes", "process", "peak_rss_bytes"),
)
_MB = 1e6
_LATENCIES = ("min", "mean", "p50", "p75", "p95", "p99", "p99.9", "max")


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure of all results, None for a result without it; an `own` measure is specific to the scenario."""

    name: str
    unit: str
    values: tuple[float | None, ...]
    own: bool = False

    def text(self, at: int) -> str:
        value = self.values[at]
        return "" if value is None else figure_text(value, self.unit)

    def ratio(self, at: int) -> str | None:
        """Return the ratio of a value to the first result's; None for the first, or if either is missing."""
        base, value = self.values[0], self.values[at]
        return None if base is None or value is None or at == 0 else ratio_text(value, base)

    def better(self, at: int) -> bool | None:
        """Return whether a value is better than the first result's; None if they are close or not comparable."""
        base, value = self.values[0], self.values[at]
        if base is None or value is None or self.unit not in {*_LESS_IS_BETTER, "per_s"}:
            return None
        if abs(value - base) <= _INSIGNIFICANT * base:
            return None
        return (value < base) == (self.unit in _LESS_IS_BETTER)

    def share(self, at: int) -> float:
        """Return a value as a share of the largest value in its row."""
        most = max((value for value in self.values if value is not None), default=0.0)
        return max(0.0, (self.values[at] or 0.0) / most) if most > 0 else 0.0


def in_words(name: str) -> str:
    """Return the name of a figure as words."""
    return " ".join("CPU" if word == "cpu" else word for word in name.split("_"))


def rows(results: Sequence[Result]) -> list[Measure]:
    """Return the measures that at least one result has."""
    made = [
        Measure(name, unit, tuple(_measured(result, part, field) for result in results))
        for name, unit, part, field in _MEASURES
    ]
    units = {name: figure.unit for result in results for name, figure in result.figures.items()}
    for name, unit in units.items():
        found = [result.figures.get(name) for result in results]
        values = tuple(one.value if one and one.unit == unit else None for one in found)
        made.append(Measure(in_words(name), unit, values, own=True))
    return [row for row in made if any(value is not None for value in row.values)]


def labels(results: Sequence[Result]) -> list[str]:
    """Return a unique label for each result: its broker and, where needed, scenario, differing options and number."""
    names = [result.broker.product or "broker" for result in results]
    if len({result.scenario for result in results}) > 1:
        names = [f"{name} {result.scenario}" for name, result in zip(names, results, strict=True)]
    if len(set(names)) < len(names):
        options = [option_texts(result) for result in results]
        keys = dict.fromkeys(key for texts in options for key in texts)
        differing = [key for key in keys if len({texts.get(key, "") for texts in options}) > 1]
        parts = [", ".join(f"{key} {texts.get(key, '')}" for key in differing[:3]) for texts in options]
        names = [f"{name}, {part}" if part else name for name, part in zip(names, parts, strict=True)]
    return [f"{name} (run {at})" if names.count(name) > 1 else name for at, name in enumerate(names, 1)]


def option_texts(result: Result) -> dict[str, str]:
    """Return the options of a run as text; "" for an option without a value."""
    texts = {}
    for key, value in result.options.items():
        items = value if isinstance(value, list) else [] if value is None else [value]
        texts[key] = ", ".join(item if isinstance(item, str) else json.dumps(item) for item in items)
    return texts


def _measured(result: Result, part: str, field: str) -> float | None:
    """Return a field of a part of a result; None for a missing part, or for a total of 0."""
    value: float | None = getattr(getattr(result, part), field, None)
    return None if part == "totals" and not value else value


def table(result: Result) -> str:
    """Return the summary of a run for the terminal."""
    parts = [
        [headline(result)],
        _columns(_count_rows(result)),
        _columns(latency_rows(result)),
        _columns((in_words(name), figure_text(one.value, one.unit)) for name, one in result.figures.items()),
        _use_lines(result),
        [f"FAILED: {plain(failure)}" for failure in result.failures],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def compared(results: Sequence[Result]) -> str:
    """Return a comparison of results for the terminal, each measure with its ratio to the first result's."""
    measures = rows(results)
    cells = [(row.name, *(_cell(row, at) for at in range(len(results)))) for row in measures]
    failures = [f"FAILED: {plain(failure)}" for result in results for failure in result.failures]
    return "\n".join([*_columns([("", *labels(results)), *cells]), *failures]) + "\n"


def _cell(row: Measure, at: int) -> str:
    ratio = row.ratio(at)
    return f"{row.text(at)}  {ratio:>6}" if ratio else row.text(at)


def headline(result: Result) -> str:
    """Return one line that names broker, scenario and duration."""
    broker = result.broker
    host = f"[{broker.host}]" if ":" in broker.host else broker.host
    place = f"{plain(broker.product) or 'a broker'} at {plain(host)}:{broker.port}"
    return f"{plain(result.scenario)}: {place}, {duration_text(result.seconds * 1e6)}"


def bottleneck_text(generator: Generator) -> str:
    """Return how busy the generator was, and whether it was the bottleneck."""
    busy = f"busiest process {share_text(generator.busy_share)} busy"
    if generator.ceiling_per_s:
        busy += f", ceiling {rate_text(generator.ceiling_per_s)}"
    if generator.bottleneck:
        return f"{busy}: the generator was the bottleneck, the broker can do more"
    return f"{busy}: not the bottleneck"


def _count_rows(result: Result) -> list[tuple[str, ...]]:
    totals, seconds = result.totals, result.seconds or 1.0
    rows: list[tuple[str, ...]] = [("", "messages", "per second", "MB/s")]
    rates = {
        "published": (totals.publish_per_s, totals.publish_bytes),
        "confirmed": (totals.confirm_per_s, 0),
        "delivered": (totals.deliver_per_s, totals.deliver_bytes),
    }
    for name in ("published", "confirmed", "delivered", "acked", "nacked", "returned"):
        per_s, size_bytes = rates.get(name, (0.0, 0))
        megabytes = digits(size_bytes / seconds / _MB) if size_bytes else ""
        if count := getattr(totals, name):
            rows.append((name, count_text(count), count_text(per_s) if per_s else "", megabytes))
    return rows if len(rows) > 1 else []


def latency_rows(result: Result) -> list[tuple[str, ...]]:
    """Return the measured latencies as rows, after a header; empty if none were measured."""
    rows: list[tuple[str, ...]] = [("", "messages", *_LATENCIES)]
    latencies = {"publish to deliver": result.latency_us, "publish to confirm": result.confirm_latency_us}
    for name, one in latencies.items():
        if one is not None:
            values = (getattr(one, field.replace(".", "_")) for field in _LATENCIES)
            rows.append((name, count_text(one.count), *map(duration_text, values)))
    return rows if len(rows) > 1 else []


def _use_lines(result: Result) -> list[str]:
    lines, process, generator = [], result.process, result.generator
    if process:
        each_us = process.cpu_us_per_message
        each = "" if each_us is None else f", {duration_text(each_us)} per message"
        memory = f"memory {size_text(process.rss_bytes)}, at most {size_text(process.peak_rss_bytes)}"
        lines.append(f"broker     CPU {duration_text(process.cpu_s * 1e6)}{each}, {memory}")
    if generator != Generator():
        lines.append(f"generator  CPU {duration_text(generator.cpu_s * 1e6)}, {bottleneck_text(generator)}")
    return lines


def _columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the rows as aligned lines: names to the left, numbers to the right."""
    cells = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for name, *values in cells:
        right = (value.rjust(width) for value, width in zip(values, widths[1:], strict=True))
        lines.append("  ".join([name.ljust(widths[0]), *right]).rstrip())
    return lines
