"""Shows a result as text: the counts with their rates, the latencies, and what broker and generator used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker.figures.markup import plain
from broker.figures.numerals import count_text, digits, duration_text, figure_text, rate_text, share_text, size_text
from broker.perf.comparison import Measure, labels, rows, spoken
from broker.perf.result import Generator, Latency, ProcessUse, Result, RunTotals

_MB = 1e6
_LATENCY_HEAD = ("", "messages", "min", "mean", "p50", "p75", "p95", "p99", "p99.9", "max")


def table(result: Result) -> str:
    """Return the lines that end a run on the terminal."""
    parts = [
        [head(result)],
        _columns(_count_rows(result)),
        _columns(latency_rows(result)),
        _columns((spoken(name), figure_text(one.value, one.unit)) for name, one in result.figures.items()),
        _use_lines(result),
        [f"FAILED: {plain(failure)}" for failure in result.failures],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def compared(results: Sequence[Result]) -> str:
    """Return the lines that compare results, each measure with its ratio to the first result's."""
    measures = rows(results)
    cells = [(row.name, *(_cell(row, at) for at in range(len(results)))) for row in measures]
    failures = [f"FAILED: {plain(failure)}" for result in results for failure in result.failures]
    return "\n".join([*_columns([("", *labels(results)), *cells]), *failures]) + "\n"


def _cell(row: Measure, at: int) -> str:
    ratio = row.ratio(at)
    return f"{row.text(at)}  {ratio:>6}" if ratio else row.text(at)


def head(result: Result) -> str:
    """Return one line that names the measured broker and scenario."""
    broker = result.broker
    host = f"[{broker.host}]" if ":" in broker.host else broker.host
    place = f"{plain(broker.product) or 'a broker'} at {plain(host)}:{broker.port}"
    return f"{plain(result.scenario)}: {place}, {duration_text(result.seconds * 1e6)}"


def bottleneck_text(generator: Generator) -> str:
    """Return the generator's spare capacity, as the end of a sentence."""
    busy = f"busiest process {share_text(generator.busy_share)} busy"
    if generator.ceiling_per_s:
        busy += f", ceiling {rate_text(generator.ceiling_per_s)}"
    if generator.bottleneck:
        return f"{busy}: the generator was the bottleneck, the broker can do more"
    return f"{busy}: not the bottleneck"


def _count_rows(result: Result) -> list[tuple[str, ...]]:
    totals, seconds = result.totals, result.seconds or 1.0
    rates = {
        "published": (totals.publish_per_s, totals.publish_bytes),
        "confirmed": (totals.confirm_per_s, 0),
        "delivered": (totals.deliver_per_s, totals.deliver_bytes),
    }
    if totals == RunTotals():
        return []
    rows: list[tuple[str, ...]] = [("", "messages", "per second", "MB/s")]
    for name in ("published", "confirmed", "delivered", "acked", "nacked", "returned"):
        per_s, size_bytes = rates.get(name, (0.0, 0))
        megabytes = digits(size_bytes / seconds / _MB) if size_bytes else ""
        if count := getattr(totals, name):
            rows.append((name, count_text(count), count_text(per_s) if per_s else "", megabytes))
    return rows


def latency_rows(result: Result) -> list[tuple[str, ...]]:
    """Return the measured latencies as rows under a header; empty if none were measured."""
    rows = [("publish to deliver", result.latency_us), ("publish to confirm", result.confirm_latency_us)]
    shown = [_latency_row(name, latency) for name, latency in rows if latency is not None]
    return [_LATENCY_HEAD, *shown] if shown else []


def _latency_row(name: str, one: Latency) -> tuple[str, ...]:
    values = (one.min, one.mean, one.p50, one.p75, one.p95, one.p99, one.p99_9, one.max)
    return (name, count_text(one.count), *(duration_text(value) for value in values))


def _use_lines(result: Result) -> list[str]:
    lines = [f"broker     {_process_text(result.process)}"] if result.process else []
    generator = result.generator
    if generator != Generator():
        lines.append(f"generator  CPU {duration_text(generator.cpu_s * 1e6)}, {bottleneck_text(generator)}")
    return lines


def _process_text(process: ProcessUse) -> str:
    text = f"CPU {duration_text(process.cpu_s * 1e6)}"
    if process.cpu_us_per_message is not None:
        text += f", {duration_text(process.cpu_us_per_message)} per message"
    return f"{text}, memory {size_text(process.rss_bytes)}, at most {size_text(process.peak_rss_bytes)}"


def _columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the rows as aligned lines: names left, numbers right."""
    cells = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for name, *values in cells:
        right = (value.rjust(width) for value, width in zip(values, widths[1:], strict=True))
        lines.append("  ".join([name.ljust(widths[0]), *right]).rstrip())
    return lines
