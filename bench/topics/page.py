"""Fills the marked places of a page with the tables of a kept run, so that page and figures cannot disagree.

Shapes: a place is `<!-- figures: NAME -->`, a blank line, the table, a blank line, and `<!-- end of figures -->`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bench.topics.tables import TABLES

_PLACE = re.compile(r"<!-- figures: ([a-z-]+) -->\n.*?<!-- end of figures -->", re.DOTALL)
_KEPT = re.compile(r"`bench/results/(topics[\w-]*\.json)`")


def load(path: Path) -> dict[str, Any]:
    """Return the content of a kept run."""
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def filled(text: str, content: dict[str, Any], name: str) -> str:
    """Return a page with the tables and the name of a kept run in all places. Raises: KeyError for a place unknown."""

    def table(place: re.Match[str]) -> str:
        part, draw = TABLES[place[1]]
        lines = draw(content["parts"]) if part in content["parts"] else "(Not measured in this run.)"
        return f"<!-- figures: {place[1]} -->\n\n{lines}\n\n<!-- end of figures -->"

    return _KEPT.sub(f"`bench/results/{name}`", _PLACE.sub(table, text))


def kept_name(text: str) -> str:
    """Return the name of the run that a page shows. Raises: ValueError if it names none."""
    found = _KEPT.search(text)
    if not found:
        raise ValueError("the page names no kept run")
    return found[1]
