"""Writes results as one self-contained HTML page: headline figures, charts, comparison and options."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Final

from broker.figures.markup import Amount, document, escaped, table, tiles
from broker.figures.numerals import count_text, duration_text, size_text
from broker.perf.comparison import Measure, labels, option_rows, rows
from broker.perf.pictures import pictures
from broker.perf.result import Generator, Result
from broker.perf.table import bottleneck_text, latency_rows

_COUNTS: Final = ("published", "confirmed", "nacked", "returned", "delivered", "acked")
_TILES: Final = (*_COUNTS, "latency p50", "latency p99", "broker CPU/message", "broker peak memory")
_MOST_TILES: Final = 8


def page(results: Sequence[Result]) -> str:
    """Return the page of one result, or of several side by side.

    Raises: ValueError without a result.
    """
    if not results:
        raise ValueError("a page shows at least one result")
    names = labels(results)
    alone = len(results) == 1
    title = f"{' and '.join(dict.fromkeys(result.scenario for result in results))}: {' / '.join(names)}"
    measures = rows(results)
    charts = "".join(pictures(results, names)) + (_latencies(results[0]) if alone else "")
    parts = [
        f"<header><h1>{escaped(title)}</h1>{_subtitle(results)}</header>\n",
        *(_failures(result, name, alone=alone) for result, name in zip(results, names, strict=True)),
        _tiles(measures) if alone else _comparison(measures, names),
        *(_generator(result, name, alone=alone) for result, name in zip(results, names, strict=True)),
        f'<section class="charts">\n{charts}</section>\n' if charts else "",
        '<section class="sheets">' if alone else "",
        _facts("Figures", [(row.name, (row.text(0),)) for row in measures if row.own], names[:1]) if alone else "",
        _facts("Counts", _count_rows(results), names),
        _facts("Options", option_rows(results), names),
        _facts("Broker, generator and machine", list(_place_rows(results)), names),
        "</section>\n" if alone else "",
        _commands(results),
    ]
    return document(title, f"{''.join(parts)}<footer>Made by <code>slotmq perf --plot</code>.</footer>\n")


def _subtitle(results: Sequence[Result]) -> str:
    if len(results) > 1:
        return '<p class="soft">Ratios are to the first column.</p>'
    result = results[0]
    return f'<p class="soft">{escaped(f"{result.started}, {duration_text(result.seconds * 1e6)}")}</p>'


def _failures(result: Result, name: str, *, alone: bool) -> str:
    of = "" if alone else f" {name}:"
    return "".join(
        f'<p class="note bad"><b>Failed.</b>{escaped(f"{of} {failure}")}</p>\n' for failure in result.failures
    )


def _tiles(measures: Sequence[Measure]) -> str:
    """Return the headline tiles; a scenario without messages shows its own figures."""
    shown = [row for row in measures if row.name in _TILES and not row.own]
    shown += [row for row in measures if row.own][: max(0, _MOST_TILES - len(shown))]
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
    """Return the latencies as a card beside the charts; "" if none were measured."""
    found = latency_rows(result)
    if not found:
        return ""
    head, *rows = zip(*found, strict=True)
    made = table(head, [(name, *map(Amount, cells)) for name, *cells in rows])
    return f"<figure><figcaption>Latency</figcaption>{made}</figure>\n"


def _facts(title: str, facts: Sequence[tuple[str, tuple[str, ...]]], names: Sequence[str]) -> str:
    """Return a table of facts with a column for each result, which marks the differences."""
    shown = [(name, values) for name, values in facts if any(values)]
    if not shown:
        return ""
    several, differing = len(names) > 1, title == "Options"
    heads = "".join(f"<th>{escaped(name)}</th>" for name in names)
    head = f"<thead><tr><th></th>{heads}</tr></thead>" if several else ""
    body = "".join(
        f"<tr{' class=differs' if differing and len(set(values)) > 1 else ''}><th>{escaped(name)}</th>"
        f"{''.join(f'<td>{escaped(value)}</td>' for value in values)}</tr>\n"
        for name, values in shown
    )
    made = f'<table class="facts">{head}<tbody>\n{body}</tbody></table>'
    return f'<div class="wide"><h2>{escaped(title)}</h2>{made}</div>\n'


def _count_rows(results: Sequence[Result]) -> list[tuple[str, tuple[str, ...]]]:
    counts = [(name, [getattr(result.totals, name) for result in results]) for name in _COUNTS]
    return [(name, tuple(count_text(value) for value in values)) for name, values in counts if any(values)]


def _place_rows(results: Sequence[Result]) -> Iterable[tuple[str, tuple[str, ...]]]:
    yield "broker", tuple(result.broker.product for result in results)
    yield "address", tuple(f"{result.broker.host}, port {result.broker.port}" for result in results)
    yield "started", tuple(result.started for result in results)
    yield "took", tuple(duration_text(result.seconds * 1e6) for result in results)
    generators = [result.generator for result in results]
    used = [result.process for result in results]
    yield "broker's CPU", tuple(duration_text(one.cpu_s * 1e6) if one else "" for one in used)
    yield "broker's memory at the end", tuple(size_text(one.rss_bytes) if one else "" for one in used)
    yield "generator's CPU", tuple(duration_text(one.cpu_s * 1e6) if one.cpu_s else "" for one in generators)
    machines = [result.machine for result in results]
    yield "processor", tuple(f"{one.cpu}, {one.cores} cores" if one else "" for one in machines)
    yield "memory", tuple(size_text(one.memory_bytes) if one else "" for one in machines)
    yield "system", tuple(f"{one.system}, {one.python}" if one else "" for one in machines)


def _commands(results: Sequence[Result]) -> str:
    lines = "".join(
        f"<p><code>slotmq perf {escaped(shlex.join(result.arguments))}</code></p>\n"
        for result in results
        if result.arguments
    )
    return f"<h2>Command</h2>{lines}" if lines else ""
