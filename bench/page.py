"""Fills docs/performance.md and docs/figures.md with the tables of a stored run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.measured import Measured
from bench.places import Places
from bench.tables import TABLES, TEXTS

_PLACES = Places("bench", "bench")
kept_name = _PLACES.kept_name


def filled(text: str, content: Mapping[str, Any], name: str) -> str:
    """Return a page with the tables and the name of a stored run filled in. Raises: KeyError for an unknown place."""
    measured = Measured.of(content)
    return _PLACES.filled(
        text, name, lambda place: TEXTS[place](content) if place in TEXTS else TABLES[place](measured)
    )
