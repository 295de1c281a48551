"""A chart as SVG elements, and several charts as one SVG file that loads nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broker.figures.markup import CHART_STYLE, escaped

__all__ = ["Drawing", "sheet"]

GAP: Final = 14
PAD: Final = 12
HEAD: Final = 24  # a chart's title
LEGEND_ROW: Final = 18
SWATCH: Final = 18
LETTER: Final = 6.4  # the mean width of a letter of the legend
TOP: Final = 40  # the sheet's title

SHEET_STYLE: Final = (
    CHART_STYLE
    + """text.title { font-weight: 600; font-size: 14px; fill: var(--ink); }
text.sheet { font-weight: 600; font-size: 17px; fill: var(--ink); }
.paper { fill: var(--paper); } .card { fill: var(--card); stroke: var(--rule); }
.swatch { stroke: var(--k); stroke-width: 3; } .swatch.dashed { stroke-dasharray: 5 3; }
"""
)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart: title, size, SVG elements, and the legend.

    Shapes: `legend` has the name of each line and the classes of its colour; None if the chart has no lines.
    """

    title: str
    width: int
    height: int
    parts: Sequence[str]
    legend: Sequence[tuple[str, str]] | None = None

    def figure(self) -> str:
        """Return the chart as an HTML figure; the page's style sets its colours."""
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
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {y:g}" width="{wide}" height="{y:g}" role="img" '
        f'aria-label="{escaped(title)}">\n<style>{SHEET_STYLE}</style>\n<rect width="{wide}" height="{y:g}" '
        f'class="paper"/>\n<text x="{GAP}" y="27" class="sheet">{escaped(title)}</text>\n{body}\n</svg>\n'
    )


def _legend(drawing: Drawing, width: int) -> tuple[int, str]:
    """Return the number of rows that the legend takes, and its elements."""
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
