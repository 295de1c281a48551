"""The report as one HTML file that needs no network and no script: its head and its sections in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.figures.markup import document, escaped, tiles
from broker.figures.numerals import short_text, size_text, span_text
from broker.pipeline.report.broker_sections import bindings_section, consumers_section, reach_section, taps_section
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

TRAFFIC = {
    "Rate": rate_section,
    "Topic heat": heat_section,
    "Top keys": keys_section,
    "Exchanges": exchanges_section,
    "Sizes": sizes_section,
}
OTHERS = {
    "Fan-out": reach_section,
    "Bindings": bindings_section,
    "Slots and cursors": taps_section,
    "Queues and consumers": consumers_section,
    "Forecast": forecast_section,
}


def page(values: Mapping[str, Any]) -> str:
    """Return the page of a report's values."""
    traffic = values["traffic"]
    bodies = {} if traffic is None else {title: section(traffic) for title, section in TRAFFIC.items()}
    bodies |= {title: section(values) for title, section in OTHERS.items()}
    names = {title: title.lower().replace(" ", "-") for title in bodies}
    links = "".join(f'<a href="#{names[title]}">{escaped(title)}</a>' for title in bodies)
    body = "".join(
        f'<section id="{names[title]}"><h2>{escaped(title)}</h2>\n{made}</section>\n' for title, made in bodies.items()
    )
    chosen = "".join(
        f"; {name} {' '.join(value) if isinstance(value, list) else value}"
        for name, value in values["selection"].items()
        if value
    )
    lake = escaped(str(values["lake"]))
    head = (
        f'<h1>Traffic report</h1>\n<p class="soft">Lake <code>{lake}</code>{escaped(chosen)}. '
        f"Made {escaped(values['made'])}. All times are UTC.</p>\n{_headline(values)}<nav>{links}</nav>\n"
    )
    return document(f"Traffic report: {values['lake']}", head + body)


def _headline(values: Mapping[str, Any]) -> str:
    traffic, reach = values["traffic"], values["reach"]
    if traffic is None:
        return "<p>There is no message in this part of the lake.</p>"
    span_s = (traffic["last_ms"] - traffic["first_ms"]) / 1000
    facts = [
        (short_text(traffic["messages"]), "messages"),
        (size_text(traffic["bytes"]), "in their bodies"),
        (short_text(traffic["keys"]), "routing keys"),
        (span_text(span_s), f"from {traffic['first'][:19].replace('T', ' ')}"),
        (f"{short_text(traffic['messages'] / span_s) if span_s else '-'}/s", "on average"),
        (short_text(max(traffic["rate"]["messages"])), f"in the busiest {slice_name(traffic['slice_ms'])}"),
    ]
    if reach is not None:
        facts += [
            (f"{reach['mean']:.2f}", "queues a message, on average"),
            (short_text(reach["unmatched_messages"]), "messages that no queue gets"),
            (short_text(len(reach["dead_bindings"])), f"dead of {reach['bindings']:,} bindings"),
            (short_text(len(values["redundant_bindings"])), "redundant bindings"),
        ]
    return tiles(facts)
