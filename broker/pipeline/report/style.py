"""The page's style: one font, one accent, light or dark as the reader's system is."""

from __future__ import annotations

from typing import Final

__all__ = ["STYLE"]

STYLE: Final = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2430; --soft: #5b6675; --rule: #e3e7ec; --cold: #f3f5f8;
  --accent: #1f6feb; --second: #c2570c; --card: #fafbfc; }
@media (prefers-color-scheme: dark) { :root { --paper: #12161c; --ink: #e4e9f0; --soft: #97a3b3; --rule: #2a323d;
  --cold: #1a2028; --accent: #5aa2ff; --second: #f0883e; --card: #171c23; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 32px 24px 64px; max-width: 1000px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 44px 0 4px; }
h3 { font-size: 15px; margin: 22px 0 2px; }
p { margin: 4px 0 10px; } .soft { color: var(--soft); }
code { font: 13px/1.4 ui-monospace, Menlo, Consolas, monospace; }
nav { margin: 12px 0 20px; } nav a { color: var(--accent); margin-right: 14px; text-decoration: none; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 10px; }
.tile { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 10px 12px; }
.tile b { display: block; font-size: 21px; font-weight: 600; } .tile span { color: var(--soft); font-size: 13px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; margin: 6px 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
td { overflow-wrap: anywhere; } th { color: var(--soft); font-weight: 500; white-space: nowrap; }
th.number, td.number { text-align: right; white-space: nowrap; }
svg.chart { display: block; width: 100%; height: auto; margin: 4px 0; }
.chart text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: var(--ink); }
.chart .tick, .chart .value, .chart .axis { fill: var(--soft); }
.chart .grid { stroke: var(--rule); stroke-width: 1; } .chart .cold { fill: var(--cold); }
.chart .bar, .chart .hot { fill: var(--accent); } .chart .hit { fill: transparent; }
.chart .area { fill: var(--accent); fill-opacity: .14; }
.chart .line { fill: none; stroke: var(--accent); stroke-width: 2; }
.chart .line.two { stroke: var(--second); stroke-dasharray: 6 4; } .chart .dot { fill: var(--accent); fill-opacity: 0; }
.chart .dot.two { fill: var(--second); } .chart .point:hover .dot { fill-opacity: 1; }
.chart g:hover .bar { fill: var(--second); } .chart .hot:hover { stroke: var(--ink); stroke-width: 1; }
@media print { body { max-width: none; } nav { display: none; } h2 { break-after: avoid; }
  svg { break-inside: avoid; } }
"""
