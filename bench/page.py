"""Fills docs/performance.md with the tables of a stored run of S1 to S9."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.measured import Measured
from bench.places import Places
from bench.tables import TABLES, machine

_PLACES = Places("bench", "bench")
kept_name = _PLACES.kept_name


def filled(text: str, content: Mapping[str, Any], name: str) -> str:
    """Return a page with the tables and the name of a stored run filled in. Raises: KeyError for an unknown place."""
    measured = Measured.of(content)
    return _PLACES.filled(text, name, lambda place: machine(content) if place == "machine" else TABLES[place](measured))
