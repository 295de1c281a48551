"""Self-contained HTML: escaped text, tables with right-aligned numbers, and the page around them."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

CHART_STYLE: Final = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2430; --soft: #5b6675; --rule: #e3e7ec; --card: #fafbfc;
  --good: #0a7f4f; --bad: #b3261e; --goodback: #eaf7f0; --badback: #fdeeec; --bar: #dbe7fb;
  --c0: #2563eb; --c1: #e07b00; --c2: #0a9a6b; --c3: #9333ea; --c4: #d6336c; --c5: #0e8fb0; }
@media (prefers-color-scheme: dark) { :root { --paper: #12161c; --ink: #e4e9f0; --soft: #97a3b3; --rule: #2a323d;
  --card: #171c23; --good: #4cc38a; --bad: #ff8a80; --goodback: #12271d; --badback: #331a18; --bar: #1f3252;
  --c0: #5aa2ff; --c1: #ffab4a; --c2: #41d39a; --c3: #c08bff; --c4: #ff7fa8; --c5: #4fcbe8; } }
svg text { font: 11.5px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: var(--soft); }
svg .grid { stroke: var(--rule); } svg .tick { stroke: var(--soft); stroke-opacity: .6; }
.k0 { --k: var(--c0); } .k1 { --k: var(--c1); } .k2 { --k: var(--c2); }
.k3 { --k: var(--c3); } .k4 { --k: var(--c4); } .k5 { --k: var(--c5); }
svg .line { fill: none; stroke: var(--k); stroke-linejoin: round; stroke-linecap: round; stroke-opacity: .85; }
svg .line.dashed { stroke-dasharray: 7 5; }
svg .bar { fill: var(--c0); } svg .bar:hover { stroke: var(--ink); } svg .cold { fill: var(--rule); fill-opacity: .5; }
svg .dot { fill: var(--k); fill-opacity: 0; } svg .dot:hover, svg .dot.lone { fill-opacity: 1; }
"""

STYLE: Final = (
    CHART_STYLE
    + """* { box-sizing: border-box; }
body { margin: 0 auto; padding: 32px 24px 64px; max-width: 1180px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 27px; line-height: 1.25; margin: 0 0 2px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 36px 0 8px; } h3 { font-size: 15px; margin: 20px 0 4px; }
nav { margin: 12px 0 20px; } nav a { color: var(--c0); margin-right: 14px; text-decoration: none; }
p { margin: 2px 0 8px; overflow-wrap: anywhere; } .soft { color: var(--soft); }
code { font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(var(--across), 1fr); gap: 10px; margin: 18px 0 12px; }
@media (max-width: 760px) { .tiles { grid-template-columns: repeat(2, 1fr); } }
.tile { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 10px 14px; }
.tile b { display: block; font-size: 23px; font-weight: 600; letter-spacing: -.01em; white-space: nowrap; }
.tile span { color: var(--soft); font-size: 13px; }
.note { border-radius: 8px; padding: 9px 14px; margin: 8px 0; border: 1px solid var(--rule); }
.note b { font-weight: 600; } .note.good { background: var(--goodback); } .note.good b { color: var(--good); }
.note.bad { background: var(--badback); } .note.bad b { color: var(--bad); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(480px, 100%), 1fr)); gap: 14px; }
figure { margin: 0 0 12px; padding: 12px 14px 6px; background: var(--card); border: 1px solid var(--rule);
  border-radius: 8px; min-width: 0; break-inside: avoid; }
.charts figure { margin: 0; } figcaption { font-weight: 600; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 0 16px; margin: 0; padding: 0; min-height: 22px;
  color: var(--soft); font-size: 13px; }
.legend li::before { content: ""; display: inline-block; width: 18px; border-top: 3px solid var(--k);
  margin-right: 6px; vertical-align: 4px; }
.legend li.dashed::before { border-top-style: dashed; }
figure svg { display: block; width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
th { color: var(--soft); font-weight: 500; } td { overflow-wrap: anywhere; }
thead th { vertical-align: bottom; }
th.number, td.number { text-align: right; white-space: nowrap; }
.number + :not(.number) { padding-left: 26px; }
.sheets { columns: 2 440px; column-gap: 28px; } .sheets .wide { break-inside: avoid; padding-top: 1px; }
table.facts th { width: 200px; } figure td, figure th { padding-top: 4px; padding-bottom: 4px; }
tr.differs td { font-weight: 600; }
table.compare { table-layout: fixed; min-width: 640px; } table.compare th:first-child { width: 200px; }
.measure { position: relative; padding: 5px 8px; }
.measure i { position: absolute; left: 0; top: 4px; bottom: 4px; border-radius: 3px; background: var(--bar); }
.measure b, .measure small { position: relative; font-weight: 500; }
.measure small { margin-left: 8px; font-size: 13px; color: var(--soft); }
.measure small.good { color: var(--good); } .measure small.bad { color: var(--bad); }
thead .measure::before { content: ""; display: inline-block; width: 10px; height: 10px; border-radius: 3px;
  margin-right: 6px; background: var(--k); }
footer { margin-top: 40px; color: var(--soft); font-size: 13px; }
.number.measure { padding-right: 14px; } .number.measure i { left: auto; right: 6px; }
@media print { body { max-width: none; padding: 0; } nav { display: none; } h2 { break-after: avoid; } }
"""
)
ROWS_MAX: Final = 50
TILES_ACROSS: Final = 6
_NOTHING_OUTSIDE: Final = "default-src 'none'; style-src 'unsafe-inline'"  # so a page cannot load external resources


class Amount(NamedTuple):
    """A number in a table, as text; `share` is the coloured part of its cell."""

    text: str
    share: float = 0.0


def plain(text: str) -> str:
    """Return text without terminal control characters: a broker may announce any name."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def escaped(text: str) -> str:
    """Return text escaped for HTML and SVG."""
    return html.escape(plain(text))


def table(head: Sequence[str], rows: Iterable[Sequence[str | int | Amount]], *, most: int = ROWS_MAX) -> str:
    """Return a table with right-aligned numbers. Of many rows it shows the first and the number of the others."""
    shown = list(rows)
    numbers = [bool(shown) and not isinstance(cell, str) for cell in (shown[0] if shown else head)]
    heads = "".join(
        f"<th{' class=number' if number else ''}>{escaped(name)}</th>"
        for name, number in zip(head, numbers, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in shown[:most])
    more = f'<p class="soft">and {len(shown) - most:,} more</p>\n' if len(shown) > most else ""
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
    """Return the headline figures of a page, each a value with its name."""
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
        f"<title>{escaped(title)}</title><style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    )
