"""Fills the marked places of a page with the tables of a kept run, so that page and figures cannot disagree.

Shapes: a place is `<!-- bench: NAME -->`, a blank line, the table, a blank line, and `<!-- end of bench -->`; other
marks are others' business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.measured import Measured
from bench.tables import TABLES, machine

_PLACE = re.compile(r"<!-- bench: ([a-z-]+) -->\n.*?<!-- end of bench -->", re.DOTALL)
_KEPT = re.compile(r"`bench/results/(bench[\w-]*\.json)`")


def load(path: Path) -> dict[str, Any]:
    """Return the content of a kept run."""
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def filled(text: str, content: Mapping[str, Any], name: str) -> str:
    """Return a page with the tables and the name of a kept run in all places. Raises: KeyError for a place unknown."""
    measured = Measured.of(content)

    def place(found: re.Match[str]) -> str:
        lines = machine(content) if found[1] == "machine" else TABLES[found[1]](measured)
        return f"<!-- bench: {found[1]} -->\n\n{lines}\n\n<!-- end of bench -->"

    return _KEPT.sub(f"`bench/results/{name}`", _PLACE.sub(place, text))


def kept_name(text: str) -> str:
    """Return the name of the run that a page shows. Raises: ValueError if it names none."""
    found = _KEPT.search(text)
    if not found:
        raise ValueError("the page names no kept run")
    return found[1]
