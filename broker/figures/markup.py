"""Self-contained HTML: escaped text, tables with right-aligned numbers, and the page around them."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROWS_MAX: Final = 50
TILES_ACROSS: Final = 6
_NOTHING_OUTSIDE: Final = "default-src 'none'; style-src 'unsafe-inline'"  # pages load no external resources


class Amount(NamedTuple):
    """A number in a table, as text; `share` is the part of its cell that is coloured."""

    text: str
    share: float = 0.0


def style(*names: str) -> str:
    """Return the contents of style sheets in this folder."""
    return "\n" + "".join([(Path(__file__).parent / f"{name}.css").read_text() for name in names])


def plain(text: str) -> str:
    """Return text with its unprintable characters escaped, because names may contain any character."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def escaped(text: str) -> str:
    """Return text escaped for HTML and SVG."""
    return html.escape(plain(text))


def table(head: Sequence[str], rows: Iterable[Sequence[str | int | Amount]], *, rows_max: int = ROWS_MAX) -> str:
    """Return a table of up to `rows_max` rows, with right-aligned numbers and the count of omitted rows."""
    shown = list(rows)
    numbers = [bool(shown) and not isinstance(cell, str) for cell in (shown[0] if shown else head)]
    heads = "".join(
        f"<th{' class=number' if number else ''}>{escaped(name)}</th>"
        for name, number in zip(head, numbers, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in shown[:rows_max])
    more = f'<p class="soft">and {len(shown) - rows_max:,} more</p>\n' if len(shown) > rows_max else ""
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>\n{body}</tbody></table></div>{more}\n'


def _cell(value: str | int | Amount) -> str:
    if isinstance(value, str):
        return f"<td>{escaped(value)}</td>"
    amount = value if isinstance(value, Amount) else Amount(f"{value:,}")
    if not amount.share:
        return f"<td class=number>{escaped(amount.text)}</td>"
    behind = f'<i style="width:calc((100% - 12px) * {amount.share:.3f})"></i>'
    return f'<td class="number measure">{behind}<b>{escaped(amount.text)}</b></td>'


def tiles(facts: Sequence[tuple[str, str]]) -> str:
    """Return the headline figures of a page; `facts` are pairs of a value and its name."""
    shown = "".join(
        f'<div class="tile"><b>{escaped(value)}</b><span>{escaped(name)}</span></div>' for value, name in facts
    )
    across = len(facts) if len(facts) <= TILES_ACROSS else -(-len(facts) // 2)
    return f'<section class="tiles" style="--across:{across}">{shown}</section>\n' if facts else ""


def document(title: str, body: str) -> str:
    """Return a page; `body` is HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_NOTHING_OUTSIDE}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)}</title><style>{style('chart', 'page')}</style></head>\n<body>\n{body}</body></html>\n"
    )
