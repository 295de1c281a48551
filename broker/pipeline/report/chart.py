"""Charts as inline SVG: bars, columns, lines and heat. Colours are classes, which the page's style gives them."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.cli.table import cell
from broker.pipeline.report.scale import count_text, steps

__all__ = ["Bar", "Frame", "Row", "Series", "bars", "columns", "escaped", "heat", "lines"]

WIDTH: Final = 920
LINE: Final = 22  # between two rows of text
LABEL: Final = 230  # room for names on the left
LABEL_LETTERS: Final = 34
AXIS: Final = 82  # room for numbers on the left
FOOT: Final = 46  # room for the axis below
TOP: Final = 12
RIGHT: Final = 24
HEIGHT: Final = 230
NAME: Final = 54  # room for a name below a column
PALEST: Final = 0.08

Text = Callable[[float], str]
Ticks = Sequence[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Bar:
    """A value with its name, and what a tooltip says."""

    label: str
    value: float
    title: str
    text: str | None = None  # beside it; else the value


@dataclass(frozen=True, slots=True)
class Series:
    """Points of a line; `kind` is its class in the style."""

    name: str
    points: Sequence[tuple[float, float, str]]  # x, y, tooltip
    kind: str = "one"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of heat."""

    label: str
    values: Sequence[float]
    text: str


@dataclass(frozen=True, slots=True)
class Frame:
    """What the axes say."""

    title: str  # read out in place of the picture
    x: str
    y: str = ""
    number: Text = count_text
    base: int = 1000  # of the numbers: 1024 where they are sizes


def escaped(text: str) -> str:
    """Return text for HTML and SVG, in which nothing can steer anything."""
    return html.escape(cell(text))


def _short(label: str) -> str:
    return label if len(label) <= LABEL_LETTERS else f"{label[: LABEL_LETTERS - 1]}…"


def _svg(frame: Frame, height: float, parts: Iterable[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escaped(frame.title)}" class="chart">\n'
        f"{body}\n</svg>"
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escaped(text)}</text>'


def bars(frame: Frame, rows: Sequence[Bar]) -> str:
    """Return horizontal bars, one below the other, each with its name and its value."""
    most = max((row.value for row in rows), default=0)
    grid = steps(most, base=frame.base)
    room = WIDTH - LABEL - 90
    foot = TOP + LINE * len(rows)
    parts = []
    for value in grid:
        x = LABEL + room * value / grid[-1]
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{foot}" class="grid"/>')
        parts.append(_text(x, foot + 16, frame.number(value), "tick", "middle"))
    parts.append(_text(LABEL + room / 2, foot + 36, frame.x, "axis", "middle"))
    for at, row in enumerate(rows):
        y = TOP + LINE * at
        width = room * row.value / grid[-1]
        parts.append(
            f"<g><title>{escaped(row.title)}</title>"
            f'<rect x="0" y="{y}" width="{WIDTH}" height="{LINE}" class="hit"/>'
            f"{_text(LABEL - 8, y + 15, _short(row.label), 'label', 'end')}"
            f'<rect x="{LABEL}" y="{y + 3}" width="{max(width, 1):.1f}" height="{LINE - 6}" rx="2" class="bar"/>'
            f"{_text(LABEL + width + 6, y + 15, row.text or frame.number(row.value), 'value')}</g>"
        )
    return _svg(frame, foot + FOOT, parts)


def _plot(frame: Frame, grid: Sequence[float]) -> list[str]:
    """Return the grid with the numbers of the vertical axis, and what both axes say."""
    foot = TOP + HEIGHT
    parts = []
    for value in grid:
        y = foot - HEIGHT * value / grid[-1]
        parts.append(f'<line x1="{AXIS}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" class="grid"/>')
        parts.append(_text(AXIS - 8, y + 4, frame.number(value), "tick", "end"))
    parts.append(_text((AXIS + WIDTH - RIGHT) / 2, foot + 38, frame.x, "axis", "middle"))
    parts.append(
        f'<text transform="translate(12 {TOP + HEIGHT / 2:g}) rotate(-90)" class="axis" text-anchor="middle">'
        f"{escaped(frame.y)}</text>"
    )
    return parts


def columns(frame: Frame, rows: Sequence[Bar]) -> str:
    """Return upright columns side by side, each with its name below."""
    grid = steps(max((row.value for row in rows), default=0), base=frame.base)
    parts = _plot(frame, grid)
    foot = TOP + HEIGHT
    step = (WIDTH - RIGHT - AXIS) / max(1, len(rows))
    named = max(1, -(-len(rows) * NAME // (WIDTH - RIGHT - AXIS)))  # every so many have room for a name
    for at, row in enumerate(rows):
        x = AXIS + step * at
        height = HEIGHT * row.value / grid[-1]
        width = min(step - 2, 60)
        left = x + (step - width) / 2
        parts.append(
            f"<g><title>{escaped(row.title)}</title>"
            f'<rect x="{x:.1f}" y="{TOP}" width="{step:.1f}" height="{HEIGHT}" class="hit"/>'
            f'<rect x="{left:.1f}" y="{foot - height:.1f}" width="{width:.1f}" height="{height:.1f}" class="bar"/></g>'
        )
        if at % named == 0:
            parts.append(_text(x + step / 2, foot + 16, row.label, "tick", "middle"))
    return _svg(frame, foot + FOOT, parts)


def lines(frame: Frame, series: Sequence[Series], span: tuple[float, float], ticks: Ticks) -> str:
    """Return lines over a horizontal axis with ticks of its own; each point has a tooltip."""
    grid = steps(max((y for one in series for _, y, _ in one.points), default=0), base=frame.base)
    parts = _plot(frame, grid)
    foot = TOP + HEIGHT
    first, last = span
    room = WIDTH - RIGHT - AXIS

    def place(x: float) -> float:
        return AXIS + room * (x - first) / ((last - first) or 1)

    parts += [
        f'<line x1="{place(x):.1f}" y1="{foot}" x2="{place(x):.1f}" y2="{foot + 4}" class="grid"/>'
        + _text(place(x), foot + 18, text, "tick", "middle")
        for x, text in ticks
    ]
    for one in series:
        if not one.points:
            continue
        at = [(place(x), foot - HEIGHT * y / grid[-1], title) for x, y, title in one.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in at)
        if one.kind == "one" and len(at) > 1:
            parts.append(f'<polygon points="{at[0][0]:.1f},{foot} {path} {at[-1][0]:.1f},{foot}" class="area"/>')
        parts.append(f'<polyline points="{path}" class="line {one.kind}"/>')
        reach = room / max(1, len(at))
        for x, y, title in at:
            dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="dot {one.kind}"/>'
            hit = f'<rect x="{x - reach / 2:.1f}" y="{TOP}" width="{reach:.1f}" height="{HEIGHT}" class="hit"/>'
            parts.append(f'<g class="point"><title>{escaped(title)}</title>{hit}{dot}</g>')
    return _svg(frame, foot + FOOT, parts)


def heat(frame: Frame, rows: Sequence[Row], ticks: Ticks, title: Callable[[Row, int], str]) -> str:
    """Return one row of squares for each name, the darker the more; a row's sum stands at its end.

    Shapes: `ticks` are (place in a row, text).
    """
    count = max((len(row.values) for row in rows), default=1)
    most = max((value for row in rows for value in row.values), default=0) or 1
    room = WIDTH - LABEL - 70
    step = room / count
    foot = TOP + LINE * len(rows)
    parts = []
    for at, row in enumerate(rows):
        y = TOP + LINE * at
        parts.append(
            f"<g><title>{escaped(row.label)}: {escaped(row.text)}</title>"
            f"{_text(LABEL - 8, y + 15, _short(row.label), 'label', 'end')}</g>"
        )
        parts.append(f'<rect x="{LABEL}" y="{y + 1}" width="{room}" height="{LINE - 2}" class="cold"/>')
        for place, value in enumerate(row.values):
            if value:
                shade = PALEST + (1 - PALEST) * math.sqrt(value / most)  # so that little is seen too
                parts.append(
                    f'<rect x="{LABEL + step * place:.2f}" y="{y + 1}" width="{step + 0.2:.2f}" height="{LINE - 2}" '
                    f'class="hot" fill-opacity="{shade:.2f}"><title>{escaped(title(row, place))}</title></rect>'
                )
        parts.append(_text(LABEL + room + 6, y + 15, row.text, "value"))
    for tick, text in ticks:
        mark = LABEL + step * tick
        parts.append(f'<line x1="{mark:.1f}" y1="{foot}" x2="{mark:.1f}" y2="{foot + 4}" class="grid"/>')
        parts.append(_text(mark, foot + 18, text, "tick", "middle"))
    parts.append(_text(LABEL + room / 2, foot + 38, frame.x, "axis", "middle"))
    return _svg(frame, foot + FOOT, parts)
