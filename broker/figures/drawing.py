"""A chart as SVG elements, for an HTML page or for a file of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker.figures.markup import escaped

__all__ = ["Drawing"]


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
