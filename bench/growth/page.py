"""Writes the growth section of a page from a stored run, which keeps the page consistent with the figures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bench.growth.tables import LIGHT_P99_MS, light_table

BEGIN, END = "<!-- growth -->", "<!-- end of growth -->"
_LIGHT_MEANS = (
    "A light client publishes a message every 5 ms, on connections of its own. Times are from when a message was due "
    "until it was delivered: the medians of the rounds' p50 and p99, and the longest of all. The goal beside one "
    f"publisher at full speed is a p99 under {LIGHT_P99_MS:g} ms."
)
_SECTION = re.compile(f"{BEGIN}.*?{END}", re.DOTALL)


class NoSection(Exception):
    """The page has no place for the section."""


def filled(text: str, content: Mapping[str, Any], name: str) -> str:
    """Return a page with the figures of a stored run in its section. Raises: NoSection."""
    if not _SECTION.search(text):
        raise NoSection(f"no {BEGIN} ... {END}")
    section = f"{BEGIN}\n\n{body(content, name)}\n\n{END}"
    return _SECTION.sub(lambda _: section, text)


def body(content: Mapping[str, Any], name: str) -> str:
    """Return the contents of the section."""
    form = "compiled, as a wheel ships it" if content["compiled"] else "interpreted"
    parts = [
        f"Figures of `bench/results/{name}`, SlotMQ {form}.",
    ]
    if content["fairness"]:
        parts += [
            _LIGHT_MEANS,
            light_table(content["fairness"]["light"]),
        ]
        silent = content["fairness"]["silent"]
        if silent:
            parts.append(
                "Beside two consumers that read nothing, one of them on the same queue, a publisher and its consumer "
                f"have {silent['rate_ratio']:.2f} of the rate that they have without, and a message costs "
                f"{silent['cost_ratio']:.2f} times as much."
            )
    return "\n\n".join(parts)
