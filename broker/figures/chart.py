"""Draw line, column and heat charts as SVG, whose colours are set by style sheets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.figures.axis import Axis
from broker.figures.markup import escaped, style

GAP: Final = 14
PAD: Final = 12
HEAD: Final = 24  # the height of a chart's title
LEGEND_ROW: Final = 18
SWATCH: Final = 18
LETTER: Final = 6.4  # the mean width of a letter of the legend
TOP: Final = 40  # the height of the sheet's title

COLOURS: Final = 6
NARROW: Final = 560
WIDE: Final = 1060

_HEIGHT: Final = 290
_LEFT: Final = 64
_RIGHT: Final = 14
_TOP: Final = 12
_BOTTOM: Final = 46
_DOTS_MAX: Final = 240  # a line with more points is drawn without dots
_STROKE, _STROKE_INNERMOST, _STROKE_STEP = 2.2, 1.8, 1.8  # widths of lines; the first nested line is the widest
_LETTER: Final = 7.2  # the width of a letter of the axis text
_COLUMN_RATIO: Final = 0.7  # the share of a bucket's width that its column takes
_COLUMN_MAX: Final = 60.0
_NAMES: Final = 230  # the width of the names of heat rows
_NAME_LETTERS: Final = 34
_TEXTS: Final = 70  # the width of the texts at the end of heat rows
_ROW: Final = 22  # the height of a heat row
_OPACITY_MIN: Final = 0.08

Columns = Sequence[tuple[float, float, str]]  # bucket, height, tooltip text


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart: its title, size, SVG elements and legend.

    Shapes: `legend` lists each line's name and the style classes of its colour; it is None for charts without lines.
    """

    title: str
    width: int
    height: int
    parts: Sequence[str]
    legend: Sequence[tuple[str, str]] | None = None

    def figure(self) -> str:
        title, body, listed = escaped(self.title), "\n".join(self.parts), ""
        if self.legend is not None:
            entries = "".join(f'<li class="{classes}">{escaped(name)}</li>' for name, classes in self.legend)
            listed = f'<ul class="legend">{entries}</ul>\n'
        return (
            f"<figure><figcaption>{title}</figcaption>{listed}"
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{title}">\n{body}\n</svg></figure>\n'
        )


def sheet(title: str, drawings: Sequence[Drawing], across: int = 2) -> str:
    """Return the charts as SVG, `across` in a row; a row is as high as its highest chart."""
    width = max((drawing.width for drawing in drawings), default=0) + 2 * PAD
    parts: list[str] = []
    y = float(TOP)
    for first in range(0, len(drawings), across):
        row = drawings[first : first + across]
        legends = [_legend(drawing, width) for drawing in row]
        heights = [
            HEAD + LEGEND_ROW * rows + drawing.height + PAD for drawing, (rows, _) in zip(row, legends, strict=True)
        ]
        for place, (drawing, (rows, legend)) in enumerate(zip(row, legends, strict=True)):
            x = GAP + place * (width + GAP)
            parts.append(
                f'<g transform="translate({x} {y:g})"><rect width="{width}" height="{max(heights)}" rx="8" '
                f'class="card"/>'
                f'<text x="{PAD}" y="{HEAD - 4}" class="title">{escaped(drawing.title)}</text>{legend}'
                f'<g transform="translate({PAD} {HEAD + LEGEND_ROW * rows})">'
            )
            parts += [*drawing.parts, "</g></g>"]
        y += max(heights) + GAP
    wide = GAP + min(across, max(1, len(drawings))) * (width + GAP)
    body, css = "\n".join(parts), style("chart", "sheet")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {y:g}" width="{wide}" height="{y:g}" role="img" '
        f'aria-label="{escaped(title)}">\n<style>{css}</style>\n<rect width="{wide}" height="{y:g}" '
        f'class="paper"/>\n<text x="{GAP}" y="27" class="sheet">{escaped(title)}</text>\n{body}\n</svg>\n'
    )


def _legend(drawing: Drawing, width: int) -> tuple[int, str]:
    """Return the number of rows of the legend, and its SVG elements."""
    parts: list[str] = []
    x, row = float(PAD), 0
    for name, classes in drawing.legend or ():
        needed = SWATCH + 6 + LETTER * len(name) + 14
        if x > PAD and x + needed > width:
            x, row = float(PAD), row + 1
        y = HEAD + LEGEND_ROW * row + 9
        parts.append(
            f'<line x1="{x:.0f}" y1="{y}" x2="{x + SWATCH:.0f}" y2="{y}" class="swatch {classes}"/>'
            f'<text x="{x + SWATCH + 6:.0f}" y="{y + 4}">{escaped(name)}</text>'
        )
        x += needed
    return (row + 1 if parts else 0), "".join(parts)


@dataclass(frozen=True, slots=True)
class Line:
    """A named line. Shapes: `points` are (x, y, tooltip text)."""

    name: str
    points: Sequence[tuple[float, float, str]]
    colour: int


@dataclass(frozen=True, slots=True)
class HeatRow:
    """A row of a heat chart: its name, a value for each column, and the text at its end."""

    name: str
    values: Sequence[float]
    text: str


@dataclass(frozen=True, slots=True)
class _Plot:
    """The area between two axes."""

    x: Axis
    y: Axis
    width: int

    def across(self, value: float) -> float:
        return _LEFT + (self.width - _LEFT - _RIGHT) * self.x.place(value)

    def up(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * self.y.place(value)

    def grid(self) -> list[str]:
        """Return both axes with their numbers and titles."""
        foot, end = _HEIGHT - _BOTTOM, self.width - _RIGHT
        parts = []
        for value, text in self.y.ticks:
            at = self.up(value)
            parts.append(f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{end}" y2="{at:.1f}" class="grid"/>')
            parts.append(_text(_LEFT - 8, at + 4, text, "end"))
        parts.append(f'<line x1="{_LEFT}" y1="{foot}" x2="{end}" y2="{foot}" class="tick"/>')
        parts.append(
            f'<text transform="translate(11 {(_TOP + foot) / 2:g}) rotate(-90)" text-anchor="middle">'
            f"{escaped(self.y.title)}</text>"
        )
        return parts + _foot(self.x, _LEFT, end, foot, self.width)


def line_chart(
    title: str, x: Axis, y: Axis, drawn: Sequence[Line], *, nested: bool = False, width: int = NARROW
) -> Drawing:
    """Return a line chart with a legend. `nested` lines overlap, so each is thinner than the one before."""
    plot = _Plot(x, y, width)
    shown = [line for line in drawn if line.points]
    widths = [_STROKE_INNERMOST + _STROKE_STEP * at if nested else _STROKE for at in reversed(range(len(shown)))]
    parts = [*plot.grid(), *(_path(plot, line, stroke) for line, stroke in zip(shown, widths, strict=True))]
    parts += [_dots(plot, line) for line in shown]
    return Drawing(title, width, _HEIGHT, parts, [(line.name, _colour(line)) for line in shown])


def column_chart(title: str, x: Axis, y: Axis, drawn: Columns, *, width: int = NARROW) -> Drawing:
    """Return a column chart; `x` is a bucket axis, and buckets without a column stay empty."""
    plot = _Plot(x, y, width)
    wide = min(_COLUMN_MAX, _COLUMN_RATIO * (plot.across(x.low + 1) - plot.across(x.low)))
    parts = plot.grid()
    for bucket, height, title_of in drawn:
        top, middle = min(plot.up(height), _HEIGHT - _BOTTOM - 1), plot.across(bucket)  # at least 1 pixel high
        parts.append(
            f'<rect x="{middle - wide / 2:.1f}" y="{top:.1f}" width="{wide:.1f}" '
            f'height="{_HEIGHT - _BOTTOM - top:.1f}" class="bar"><title>{escaped(title_of)}</title></rect>'
        )
    return Drawing(title, width, _HEIGHT, parts)


def heat_chart(title: str, x: Axis, rows: Sequence[HeatRow], title_of: Callable[[HeatRow, int], str]) -> Drawing:
    """Return a heat chart; larger values are darker, on a square-root scale over all rows."""
    most = max((value for row in rows for value in row.values), default=0) or 1
    end, foot = WIDE - _TEXTS, _TOP + _ROW * len(rows)
    parts = []
    for at, row in enumerate(rows):
        y, step = _TOP + _ROW * at, (end - _NAMES) / max(1, len(row.values))
        name = row.name if len(row.name) <= _NAME_LETTERS else f"{row.name[: _NAME_LETTERS - 1]}…"
        parts.append(
            f"<g><title>{escaped(row.name)}: {escaped(row.text)}</title>{_text(_NAMES - 8, y + 15, name, 'end')}</g>"
        )
        parts.append(f'<rect x="{_NAMES}" y="{y + 1}" width="{end - _NAMES}" height="{_ROW - 2}" class="cold"/>')
        parts += [
            f'<rect x="{_NAMES + step * place:.2f}" y="{y + 1}" width="{step + 0.2:.2f}" height="{_ROW - 2}" '
            f'class="bar" fill-opacity="{_OPACITY_MIN + (1 - _OPACITY_MIN) * math.sqrt(value / most):.2f}">'
            f"<title>{escaped(title_of(row, place))}</title></rect>"
            for place, value in enumerate(row.values)
            if value
        ]
        parts.append(_text(end + 6, y + 15, row.text, "start"))
    parts += _foot(x, _NAMES, end, foot, WIDE)
    return Drawing(title, WIDE, foot + _BOTTOM, parts)


def _foot(x: Axis, first: float, last: float, foot: float, width: int) -> list[str]:
    """Return the ticks, the labels that fit, and the title of the horizontal axis."""
    parts, taken = [], 0.0
    for value, text in x.ticks:
        at = first + (last - first) * x.place(value)
        half = len(text) * _LETTER / 2
        parts.append(f'<line x1="{at:.1f}" y1="{foot}" x2="{at:.1f}" y2="{foot + 4}" class="tick"/>')
        if at - half >= taken:
            parts.append(_text(min(at, width - half), foot + 17, text, "middle"))
            taken = at + half + 4
    parts.append(_text((first + last) / 2, foot + 38, x.title, "middle"))
    return parts


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(text)}</text>'


def _colour(line: Line) -> str:
    dashed = " dashed" if line.colour >= COLOURS else ""
    return f"k{line.colour % COLOURS}{dashed}"


def _path(plot: _Plot, line: Line, stroke: float) -> str:
    points = " ".join(f"{plot.across(x):.1f},{plot.up(y):.1f}" for x, y, _ in line.points)
    return f'<polyline points="{points}" class="line {_colour(line)}" stroke-width="{stroke:.1f}"/>'


def _dots(plot: _Plot, line: Line) -> str:
    if len(line.points) > _DOTS_MAX:
        return ""
    seen = " lone" if len(line.points) == 1 else ""
    return "".join(
        f'<circle cx="{plot.across(x):.1f}" cy="{plot.up(y):.1f}" r="4" class="dot {_colour(line)}{seen}">'
        f"<title>{escaped(f'{line.name}: {title}')}</title></circle>"
        for x, y, title in line.points
    )
