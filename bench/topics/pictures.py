"""Draws the figures of a stored run beside those of the articles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.plot import NoPicture
from bench.topics import article
from bench.topics.blog_picture import draw_blog
from bench.topics.ink import COLOURS, bars, finish, headroom, label, style

Parts = dict[str, Any]


def draw_all(content: dict[str, Any], folder: Path) -> list[Path]:
    """Write every picture that a run has figures for into a folder, and return the files. Raises: NoPicture."""
    try:
        library: Any = import_module("matplotlib.figure")  # an optional package: type checks must work without it
        import_module("matplotlib").rcParams["svg.hashsalt"] = "slotmq"  # equal figures produce equal files
    except ImportError:
        raise NoPicture("matplotlib is not installed; it comes with the [bench] extra") from None
    found = content["machine"]
    caption = (
        f"{found['cores']} cores, {found['cpu']}, Python {found['python']}, {content['parent']} unless it says compiled"
    )
    drawn = []
    for name, needed, size, draw in _PICTURES:
        if all(part in content["parts"] for part in needed):
            figure = library.Figure(figsize=size, layout="constrained")
            draw(figure, content["parts"])
            figure.suptitle(caption, fontsize=8)
            path = folder / f"topic-index-{name}.svg"
            figure.savefig(path, metadata={"Date": None})
            drawn.append(path)
    return drawn


def _claims(figure: Any, parts: Parts) -> None:
    """Draw matching over subscriptions, and the ratio of the conventional matcher's time to each engine's."""
    left, right = figure.subplots(1, 2)
    rows = parts["claims"]["rows"]
    sizes = [row["size"] for row in rows]
    for name in rows[0]["us"]:
        left.plot(sizes, [row["us"][name] for row in rows], **style(name))
        if name != "conventional":
            right.plot(sizes, [row["ratios"][name] for row in rows], **style(name))
    right.axhline(article.SPLIT_ONCE_RATIO, color="black", linestyle=":", linewidth=1)
    right.text(
        sizes[-1],
        article.SPLIT_ONCE_RATIO * 0.5,
        "dotted: RabbitMQ 2010, splitting once, 3 times",
        fontsize=7,
        ha="right",
    )
    right.plot(
        [article.BITMAP_SUBSCRIPTIONS],
        [article.BITMAP_RATIO],
        "*",
        color="black",
        markersize=12,
        label="WSO2 2015: bitmap, 3 times at 1,000",
    )
    finish(left, "subscriptions", "us per match (less is better)", across=sizes)
    finish(right, "subscriptions", "times faster than the conventional matcher", across=sizes)
    handles, names = right.get_legend_handles_labels()
    first, first_names = left.get_legend_handles_labels()
    figure.legend(
        [first[0], *handles], [first_names[0], *names], loc="outside lower center", ncols=4, fontsize=7, frameon=False
    )


def _sizes(figure: Any, parts: Parts) -> None:
    """Draw matching, memory, adding and removing over the number of patterns, with the goals."""
    (upper_left, upper_right), (lower_left, lower_right) = figure.subplots(2, 2)
    entries = [entry for entry in parts["sizes"]["entries"] if not entry["left_out"]]
    sizes = list(article.TARGET_MATCH_US)
    targets = article.TARGET_MATCH_US
    _lines(upper_left, entries, lambda entry: entry["match_us"])
    upper_left.plot(list(targets), list(targets.values()), "*", color="black", markersize=9, label="to reach")
    finish(upper_left, "distinct wildcard patterns", "us per uncached match", across=sizes)
    _lines(upper_right, entries, lambda entry: entry["bytes_per_pattern"])
    upper_right.plot([100_000], [article.TARGET_BYTES_PER_PATTERN], "*", color="black", markersize=9)
    finish(upper_right, "distinct wildcard patterns", "bytes per pattern", across=sizes)
    for axes, verb in ((lower_left, "add"), (lower_right, "remove")):
        _lines(axes, entries, _mean_of(f"{verb}_us"))
        axes.axhline(article.TARGET_CHANGE_US, color="black", linestyle=":", linewidth=1)
        finish(axes, "distinct wildcard patterns", f"us per {verb}, mean (dotted: to reach)", across=sizes)
    handles, names = upper_left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=7, frameon=False)


def _mean_of(figure: str) -> Callable[[Parts], float]:
    return lambda entry: float(entry["figures"][figure])


def _lines(axes: Any, entries: Sequence[Parts], value: Callable[[Parts], float]) -> None:
    for engine, form in dict.fromkeys((entry["engine"], entry["form"]) for entry in entries):
        own = [entry for entry in entries if (entry["engine"], entry["form"]) == (engine, form)]
        axes.plot([entry["size"] for entry in own], [value(entry) for entry in own], **style(engine, form))


def _hostile(figure: Any, parts: Parts) -> None:
    """Draw the 99th percentile of single matches by family, in milliseconds."""
    axes = figure.subplots()
    rows = [row for row in parts["hostile"]["rows"] if "p99_us" in row]
    families = list(dict.fromkeys(row["family"] for row in rows))
    kinds = list(dict.fromkeys((row["engine"], row["form"]) for row in rows))
    for rank, (engine, form) in enumerate(kinds):
        own = {row["family"]: row["p99_us"] / 1000 for row in rows if (row["engine"], row["form"]) == (engine, form)}
        bars(
            axes,
            families,
            own,
            rank,
            len(kinds),
            label(engine, form),
            COLOURS.get(engine),
            hatch=form == "compiled",
            upright=True,
        )
    axes.axhline(article.TARGET_HOSTILE_P99_US / 1000, color="black", linestyle=":", linewidth=1, label="to stay under")
    axes.set_xticks(range(len(families)), families, fontsize=8)
    finish(
        axes,
        f"{parts['hostile']['patterns']:,} patterns of this family, keys of 64 words",
        "ms per match, 99th percentile",
    )
    headroom(axes, 50)
    axes.legend(fontsize=7, frameon=False, ncols=3)


def _broker(figure: Any, parts: Parts) -> None:
    """Draw messages per second and CPU time per message of every broker."""
    upper, lower = figure.subplots(2, 1, sharex=True)
    rows = parts["broker"]["medians"]
    places = list(dict.fromkeys(f"{row['bindings']:,} bindings\n{row['keys']}" for row in rows))
    names = list(dict.fromkeys(row["broker"] for row in rows))
    colours = dict(
        zip(names, ("#9ecae1", "#1f77b4", "#ff7f0e") if len(names) > 2 else ("#1f77b4", "#ff7f0e"), strict=False)
    )
    for rank, name in enumerate(names):
        for axes, figure_name in ((upper, "per_s"), (lower, "cpu_us")):
            own = {
                f"{row['bindings']:,} bindings\n{row['keys']}": row[figure_name]
                for row in rows
                if row["broker"] == name
            }
            bars(axes, places, own, rank, len(names), name, colours[name])
    lower.set_xticks(range(len(places)), places, fontsize=8)
    finish(upper, "", "messages per second\n(more is better)")
    finish(lower, "", "broker CPU-us per message\n(less is better)")
    headroom(upper, 5)
    headroom(lower, 2)
    upper.legend(fontsize=8, frameon=False, ncols=3)


_PICTURES: tuple[tuple[str, tuple[str, ...], tuple[float, float], Callable[[Any, Parts], None]], ...] = (
    ("claims", ("claims",), (10, 5), _claims),
    ("blog", ("blog",), (10, 8), draw_blog),
    ("sizes", ("sizes",), (10, 8), _sizes),
    ("hostile", ("hostile",), (10, 4), _hostile),
    ("broker", ("broker",), (10, 6), _broker),
)
