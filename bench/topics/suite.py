"""The engines of the topic index, interpreted and compiled, beside their goals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from bench.picture import bars, headroom, line, logarithmic
from bench.run import Row, Run
from bench.stage import extent
from bench.suites import Suite
from bench.tables import Column, Goal, crossed, goals_table, known, table
from bench.topics import engines
from broker.figures.numerals import count_text
from broker.routing.index import DEFAULT

MATCH_US: Final = {1000: 2.0, 10_000: 4.0, 100_000: 8.0, 1_000_000: 15.0}
BYTES_PER_PATTERN: Final = 500
CHANGE_US: Final = 20.0
HIT_US: Final = 0.3
HOSTILE_P99_US: Final = 1000.0
_BYTES_AT: Final = 100_000
_COLOURS: Final = {
    "conventional": "#7f7f7f",
    "split-once": "#bcbd22",
    "topic-words": "#e377c2",
    "pattern-words": "#8c564b",
    "plain-bitmap": "#ff9896",
    "bitmap": "#9467bd",
    "trie": "#1f77b4",
    "dfa": "#2ca02c",
    "tiered": "#ff7f0e",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes, rounds and limits of each part.

    Units: a `slice` is the time of one contestant in one round; `bound` limits longer steps. Up to the size `together`
    all engines are measured in turn, above it one after the other.
    """

    rounds: int = extent(5, 3)
    slice_s: float = extent(0.05, 0.01)
    sizes: tuple[int, ...] = extent(tuple(MATCH_US), (1000, 10_000))
    size_keys: int = extent(100_000, 20_000)
    together: int = 100_000
    changes: int = extent(5000, 1000)
    build_bound_s: float = 225.0
    memory_bound_bytes: int = 6 << 30
    hostile_patterns: int = extent(10_000, 1000)
    hostile_matches: int = extent(1000, 100)
    hostile_bound_s: float = extent(1.0, 0.3)
    cache_patterns: int = extent(10_000, 1000)
    cache_keys: int = extent(10_000, 1000)
    thrash_keys: int = extent(1_000_000, 50_000)


def goals(run: Run) -> Iterator[Goal]:
    """Yield every goal of the broker's default engine that a run has figures for, in its best form."""
    for patterns, wanted in MATCH_US.items():
        yield from _goal(f"uncached match at {patterns:,} patterns, us", _sizes(run, patterns), "us", wanted)
    yield from _goal(f"bytes per pattern at {_BYTES_AT:,}", _sizes(run, _BYTES_AT), "each_bytes", BYTES_PER_PATTERN)
    for patterns in MATCH_US:
        for verb in ("add", "remove"):
            yield from _goal(f"{verb} at {patterns:,} patterns, us", _sizes(run, patterns), f"{verb}_us", CHANGE_US)
    yield from _goal("cached match, us", run.rows("cache"), "hit_us", HIT_US)
    for family in dict.fromkeys(row["family"] for row in run.rows("hostile")):
        rows = run.rows("hostile", family=family, engine=DEFAULT)
        yield from _goal(f"p99 of hostile `{family}`, us", rows, "p99_us", HOSTILE_P99_US)


def _sizes(run: Run, patterns: int) -> list[Row]:
    return run.rows("sizes", size=patterns, engine=DEFAULT)


def _goal(what: str, rows: list[Row], figure: str, wanted: float) -> list[Goal]:
    found = [row[figure] for row in rows if figure in row]
    return Goal.at_most(what, min(found, default=None), wanted)


_ENGINE: Final = (Column("engine", "engine", str), Column("form", "form", str))


def _changes(row: Row) -> str:
    return ", ".join(f"{known(row, f'{verb}_us')} ({known(row, f'{verb}_worst_us')})" for verb in ("add", "remove"))


def _hostile(run: Run) -> str:
    """Return the 99th percentile in microseconds and the most visited nodes, by family, engine and form."""
    lines: dict[str, list[str]] = {}
    kinds: dict[str, None] = {}
    for row in run.rows("hostile"):
        kinds[f"{row['engine']}, {row['form']}"] = None
        cell = f"{known(row, 'p99_us')} / {known(row, 'visited_most', count_text)}"
        lines.setdefault(row["family"], []).append(cell)
    return table(["family", *kinds], [[f"`{family}`", *cells] for family, cells in lines.items()])


def _cache(run: Run) -> str:
    names = {
        "hit_us": "a hit, us",
        "empty_call_us": "a call that does nothing, us",
        "thrash_us": "a key that never returns, us",
        "uncached_us": "the same without a cache, us",
        "entries_after": "routes held after the last key",
    }
    rows = run.rows("cache")
    lines = [
        [title, *(f"{row[name]:,.{3 if name.endswith('us') else 0}f}" for row in rows)] for name, title in names.items()
    ]
    return table(["", *(row["form"] for row in rows)], lines)


def _style(engine: str, form: str = "interpreted") -> dict[str, Any]:
    """Return the style of an engine's line: heavy for its compiled form, else thin."""
    compiled = form == "compiled"
    return {
        "label": f"{engine}, compiled" if compiled else engine,
        "color": _COLOURS.get(engine, "#17becf"),
        "marker": "s" if compiled else "o",
        "markersize": 4 if compiled else 3,
        "linewidth": 2.2 if compiled else 1.0,
    }


def _draw_sizes(figure: Any, run: Run) -> bool:
    """Draw matching, memory, adding and removing over the number of patterns, with the goals."""
    rows = [row for row in run.rows("sizes") if "us" in row]
    if not rows:
        return False
    places = list(figure.subplots(2, 2).flat)
    wanted: dict[str, dict[int, float]] = {"us": MATCH_US, "each_bytes": {_BYTES_AT: BYTES_PER_PATTERN}}
    titles = {
        "us": "us per uncached match", "each_bytes": "bytes per pattern",
        "add_us": "us per add, mean", "remove_us": "us per remove, mean",
    }  # fmt: skip
    across = sorted({row["size"] for row in rows})
    for axes, (name, title) in zip(places, titles.items(), strict=True):
        for engine, form in dict.fromkeys((row["engine"], row["form"]) for row in rows):
            own = [row for row in rows if (row["engine"], row["form"]) == (engine, form)]
            line(axes, own, "size", name, **_style(engine, form))
        goal = wanted.get(name, dict.fromkeys(across, CHANGE_US))
        axes.plot(list(goal), list(goal.values()), "*", color="black", markersize=9, label="to reach")
        logarithmic(axes, "distinct wildcard patterns", title, across=across)
    handles, names = places[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=7, frameon=False)
    return True


def _draw_hostile(figure: Any, run: Run) -> bool:
    rows = run.rows("hostile")
    if not rows:
        return False
    axes = figure.subplots()
    families = list(dict.fromkeys(row["family"] for row in rows))
    kinds = list(dict.fromkeys((row["engine"], row["form"]) for row in rows))
    for rank, (engine, form) in enumerate(kinds):
        found = {row["family"]: row["p99_us"] / 1e3 for row in rows if (row["engine"], row["form"]) == (engine, form)}
        style = _style(engine, form)
        hatch = form == "compiled"
        bars(axes, families, found, rank, len(kinds), style["label"], style["color"], hatch=hatch, upright=True)
    axes.axhline(HOSTILE_P99_US / 1e3, color="black", linestyle=":", linewidth=1, label="to stay under")
    logarithmic(axes, "patterns of this family, keys of 64 words", "ms per match, 99th percentile")
    headroom(axes, 50)
    axes.legend(fontsize=7, frameon=False, ncols=3)
    return True


SUITE: Final = Suite(
    name="topics",
    about=__doc__,
    parts={
        "sizes": engines.sizes,
        "hostile": engines.hostility,
        "cache": engines.caching,
    },
    plan=Plan(),
    limit_s=600.0,
    tables={
        "match": lambda run: crossed(run.rows("sizes"), _ENGINE, "size", lambda row: known(row, "us")),
        "bytes": lambda run: crossed(
            run.rows("sizes"), _ENGINE, "size", lambda row: known(row, "each_bytes", "{:,.0f}".format)
        ),
        "changes": lambda run: crossed(run.rows("sizes"), _ENGINE, "size", _changes),
        "hostile": _hostile,
        "cache": _cache,
        "goals": lambda run: goals_table(goals(run)),
    },
    printed=("match", "bytes", "changes", "hostile", "cache", "goals"),
    mark="figures",
    pictures={
        "topic-index-sizes": ((10, 8), _draw_sizes),
        "topic-index-hostile": ((10, 4), _draw_hostile),
    },
)
