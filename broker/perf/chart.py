"""Draws lines as inline SVG; the colours are classes, which the page's style gives them."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broker.perf.axis import Axis
from broker.perf.table import plain

COLOURS: Final = 6

_WIDTH: Final = 560
_HEIGHT: Final = 290
_LEFT: Final = 64
_RIGHT: Final = 14
_TOP: Final = 12
_BOTTOM: Final = 46
_MOST_DOTS: Final = 240  # of a line: more would be heavier than they help
_EVEN, _THIN, _NEST = 2.2, 1.8, 1.8
_LETTER: Final = 7.2  # the width of one on the axis below


@dataclass(frozen=True, slots=True)
class Line:
    """A named line.

    Shapes: `points` are (x, y, what a tooltip says).
    """

    name: str
    points: Sequence[tuple[float, float, str]]
    colour: int


def escaped(text: str) -> str:
    """Return text for HTML and SVG, in which nothing can steer anything."""
    return html.escape(plain(text))


def chart(title: str, x: Axis, y: Axis, lines: Sequence[Line], *, nested: bool = False) -> str:
    """Return a figure: its title, its legend, its picture; `nested` lines lie upon each other, the first widest."""
    shown = [line for line in lines if line.points]
    legend = "".join(f'<li class="{_colour(line)}">{escaped(line.name)}</li>' for line in shown)
    widths = [_THIN + _NEST * at if nested else _EVEN for at in reversed(range(len(shown)))]
    parts = [*_grid(x, y), *(_path(x, y, line, width) for line, width in zip(shown, widths, strict=True))]
    parts += [_dots(x, y, line) for line in shown]
    body = "\n".join(parts)
    return (
        f'<figure><figcaption>{escaped(title)}</figcaption><ul class="legend">{legend}</ul>\n'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escaped(title)}">\n{body}\n</svg></figure>\n'
    )


def _colour(line: Line) -> str:
    dashed = " dashed" if line.colour >= COLOURS else ""
    return f"k{line.colour % COLOURS}{dashed}"


def _across(x: Axis, value: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * x.place(value)


def _up(y: Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * y.place(value)


def _grid(x: Axis, y: Axis) -> list[str]:
    foot = _HEIGHT - _BOTTOM
    parts = []
    for value, text in y.ticks:
        at = _up(y, value)
        parts.append(f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{_WIDTH - _RIGHT}" y2="{at:.1f}" class="grid"/>')
        parts.append(_text(_LEFT - 8, at + 4, text, "end"))
    taken = 0.0
    for value, text in x.ticks:
        at = _across(x, value)
        half = len(text) * _LETTER / 2
        parts.append(f'<line x1="{at:.1f}" y1="{foot}" x2="{at:.1f}" y2="{foot + 4}" class="tick"/>')
        if at - half >= taken:
            parts.append(_text(min(at, _WIDTH - half), foot + 17, text, "middle"))
            taken = at + half + 4
    parts.append(f'<line x1="{_LEFT}" y1="{foot}" x2="{_WIDTH - _RIGHT}" y2="{foot}" class="tick"/>')
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, x.title, "middle"))
    parts.append(
        f'<text transform="translate(11 {(_TOP + foot) / 2:g}) rotate(-90)" text-anchor="middle">'
        f"{escaped(y.title)}</text>"
    )
    return parts


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(text)}</text>'


def _path(x: Axis, y: Axis, line: Line, width: float) -> str:
    points = " ".join(f"{_across(x, a):.1f},{_up(y, b):.1f}" for a, b, _ in line.points)
    return f'<polyline points="{points}" class="line {_colour(line)}" stroke-width="{width:.1f}"/>'


def _dots(x: Axis, y: Axis, line: Line) -> str:
    if len(line.points) > _MOST_DOTS:
        return ""
    seen = " lone" if len(line.points) == 1 else ""
    return "".join(
        f'<circle cx="{_across(x, a):.1f}" cy="{_up(y, b):.1f}" r="4" class="dot {_colour(line)}{seen}">'
        f"<title>{escaped(f'{line.name}: {title}')}</title></circle>"
        for a, b, title in line.points
    )
