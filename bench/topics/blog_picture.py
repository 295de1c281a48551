"""Draws the charts of RabbitMQ's second article, with its figures beside ours."""

from __future__ import annotations

from typing import Any

from bench.topics import article
from bench.topics.ink import COLOURS, bars, finish, headroom, style, theirs

Parts = dict[str, Any]


def draw_blog(figure: Any, parts: Parts) -> None:
    """Draw its four comparisons."""
    (million, patterns), (memory, bindings) = figure.subplots(2, 2)
    _draw_million(million, parts["blog"]["million"]["rows"])
    _draw_patterns(patterns, parts["blog"]["patterns"]["rows"])
    _draw_memory(memory, parts["blog"]["million"]["rows"])
    _draw_bindings(bindings, parts["blog"]["bindings"]["rows"])


def _draw_million(axes: Any, rows: list[Parts]) -> None:
    ours = [(row["engine"], row["million_s"], COLOURS.get(row["engine"], "#17becf")) for row in rows]
    others = [(f"article:\n{name}", seconds, "#c0c0c0") for name, seconds in article.MILLION_S.items()]
    naive = article.MILLION_S["trie"] * article.TRIE_TO_NAIVE
    lines = sorted([*ours, *others, ("article:\nsplits once", naive, "#c0c0c0")], key=lambda line: line[1])
    places = [name for name, _, _ in lines]
    for name, seconds, colour in lines:
        bars(axes, places, {name: seconds}, 0, 1, name, colour)
    axes.set_xticks(range(len(places)), places, rotation=75)
    finish(axes, "", "s for 1,000,000 topics\nagainst 2,000 patterns")
    headroom(axes, 2)


def _draw_patterns(axes: Any, rows: list[Parts]) -> None:
    sizes = [row["size"] for row in rows]
    for name in rows[0]["us"]:
        axes.plot(sizes, [row["us"][name] * article.PATTERNS_TOPICS / 1e6 for row in rows], **style(name))
    for name, points in article.PATTERNS_S.items():
        axes.plot(list(points), list(points.values()), **theirs(name, name))
    finish(axes, "patterns", "s for 3,000,000 topics", across=sizes)
    axes.legend(fontsize=6, frameon=False, ncols=2)


def _draw_memory(axes: Any, rows: list[Parts]) -> None:
    for row in rows:
        looks = sorted((int(at), size) for at, size in row["bytes_at"].items() if int(at))
        if looks:
            axes.plot([at for at, _ in looks], [size / 1e6 for _, size in looks], **style(row["engine"]))
    for name, points in article.MEMORY_BYTES.items():
        axes.plot(list(points), [size / 1e6 for size in points.values()], **theirs(name, name))
    finish(axes, "topics matched (2,000 patterns)", "MB", across=())
    axes.legend(fontsize=6, frameon=False)


def _draw_bindings(axes: Any, rows: list[Parts]) -> None:
    """Draw times relative to the trie with the fewest bindings: the article does not state its number of messages."""
    unit = rows[0]["us"]["trie"]
    for name in rows[0]["us"]:
        axes.plot([row["size"] for row in rows], [row["us"][name] / unit for row in rows], **style(name))
    points_of = article.BINDINGS_S
    theirs_unit = min(points_of["2.4.0 (trie)"].values())
    for name, engine in (("2.4.0 (trie)", "trie"), ("2.3.1 (before)", "conventional")):
        points = points_of[name]
        axes.plot(list(points), [seconds / theirs_unit for seconds in points.values()], **theirs(engine, name))
    finish(axes, "bindings", "time, relative to the trie with the fewest", across=[row["size"] for row in rows])
    headroom(axes, 5)
    axes.legend(fontsize=6, frameon=False, ncols=2)
