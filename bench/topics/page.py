"""Fills docs/topic-index.md and docs/figures.md with the tables of a stored run of the topic engines."""

from __future__ import annotations

from typing import Any

from bench.places import Places
from bench.topics.tables import TABLES

_PLACES = Places("figures", "topics")
kept_name = _PLACES.kept_name


def filled(text: str, content: dict[str, Any], name: str) -> str:
    """Return a page with the tables and the name of a stored run filled in. Raises: KeyError for an unknown place."""

    def table(place: str) -> str:
        part, draw = TABLES[place]
        return draw(content["parts"]) if part in content["parts"] else "(Not measured in this run.)"

    return _PLACES.filled(text, name, table)
