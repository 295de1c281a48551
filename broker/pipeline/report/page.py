"""The report as one HTML file that needs no network and no script: its head, its sections in order, its style."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.pipeline.report.broker_sections import bindings_section, consumers_section, reach_section, taps_section
from broker.pipeline.report.chart import escaped
from broker.pipeline.report.elements import Section
from broker.pipeline.report.scale import bytes_text, count_text, duration_text
from broker.pipeline.report.style import STYLE
from broker.pipeline.report.time_slices import slice_name
from broker.pipeline.report.traffic_sections import (
    exchanges_section,
    forecast_section,
    heat_section,
    keys_section,
    rate_section,
    sizes_section,
)

__all__ = ["page"]


def page(values: Mapping[str, Any]) -> str:
    """Return the page of a report's values."""
    sections = list(_sections(values))
    links = "".join(f'<a href="#{section.name}">{escaped(section.title)}</a>' for section in sections)
    body = "\n".join(
        f'<section id="{section.name}"><h2>{escaped(section.title)}</h2>\n{section.body}</section>'
        for section in sections
    )
    chosen = ", ".join(
        f"{name} {' '.join(value) if isinstance(value, list) else value}"
        for name, value in values["selection"].items()
        if value
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="SlotMQ">
<title>Traffic report: {escaped(str(values["lake"]))}</title>
<style>{STYLE}</style></head><body>
<h1>Traffic report</h1>
<p class="soft">Lake <code>{escaped(str(values["lake"]))}</code>{f"; {escaped(chosen)}" if chosen else ""}.
Made {escaped(values["made"])}. All times are UTC.</p>
{_tiles(values)}
<nav>{links}</nav>
{body}
</body></html>
"""


def _sections(values: Mapping[str, Any]) -> list[Section]:
    traffic = values["traffic"]
    made = []
    if traffic is not None:
        made = [
            rate_section(traffic),
            heat_section(traffic),
            keys_section(traffic),
            exchanges_section(traffic),
            sizes_section(traffic),
        ]
    made += [reach_section(values), bindings_section(values), taps_section(values), consumers_section(values)]
    return [*made, forecast_section(values)]


def _tiles(values: Mapping[str, Any]) -> str:
    traffic, reach = values["traffic"], values["reach"]
    if traffic is None:
        return "<p>There is no message in this part of the lake.</p>"
    span_s = (traffic["last_ms"] - traffic["first_ms"]) / 1000
    busiest = max(traffic["rate"]["messages"])
    tiles = [
        (count_text(traffic["messages"]), "messages"),
        (bytes_text(traffic["bytes"]), "in their bodies"),
        (count_text(traffic["keys"]), "routing keys"),
        (duration_text(span_s), f"from {traffic['first'][:19].replace('T', ' ')}"),
        (f"{count_text(traffic['messages'] / span_s) if span_s else '-'}/s", "on average"),
        (count_text(busiest), f"in the busiest {slice_name(traffic['slice_ms'])}"),
    ]
    if reach is not None:
        tiles += [
            (f"{reach['mean']:.2f}", "queues a message, on average"),
            (count_text(reach["unmatched_messages"]), "messages that no queue gets"),
            (count_text(len(reach["dead_bindings"])), f"dead of {reach['bindings']:,} bindings"),
            (count_text(len(values["redundant_bindings"])), "redundant bindings"),
        ]
    made = "".join(
        f'<div class="tile"><b>{escaped(value)}</b><span>{escaped(name)}</span></div>' for value, name in tiles
    )
    return f'<div class="tiles">{made}</div>'
