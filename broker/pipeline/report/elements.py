"""What sections are made of besides charts: paragraphs and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.pipeline.report.chart import escaped

__all__ = ["ROWS_MAX", "Section", "key_label", "paragraph", "table"]

ROWS_MAX: Final = 50
EMPTY_KEY: Final = "(empty)"


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page; `body` is HTML."""

    name: str
    title: str
    body: str


def paragraph(text: str, *, soft: bool = True) -> str:
    """Return a paragraph."""
    return f"<p{' class=soft' if soft else ''}>{escaped(text)}</p>\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str | int]], *, most: int = ROWS_MAX) -> str:
    """Return a table; numbers stand right. Of many rows the first are shown, and how many are not."""
    shown = list(rows)
    more = len(shown) - most
    numbers = [bool(shown) and isinstance(value, int) for value in (shown[0] if shown else head)]
    heads = "".join(
        f"<th{' class=number' if number else ''}>{escaped(name)}</th>"
        for name, number in zip(head, numbers, strict=True)
    )
    body = "\n".join(
        "<tr>"
        + "".join(
            f"<td{' class=number' if isinstance(value, int) else ''}>"
            f"{f'{value:,}' if isinstance(value, int) else escaped(value)}</td>"
            for value in row
        )
        + "</tr>"
        for row in shown[:most]
    )
    rest = paragraph(f"and {more:,} more, which --json tells") if more > 0 else ""
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table></div>{rest}'


def key_label(key: str) -> str:
    """Return what to call a routing key, or the name of an exchange."""
    return key or EMPTY_KEY
