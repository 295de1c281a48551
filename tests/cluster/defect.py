"""Defects that are planted in a copy of the project to prove that tests catch them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Defect(NamedTuple):
    """One defect: `old` occurs once in the file at `path`."""

    name: str
    path: str
    old: str
    new: str
    tests: Sequence[str]


def defects(path: str, tests: Sequence[str], *replaced: tuple[str, str, str]) -> list[Defect]:
    """Return defects of one file that the same tests catch. Shapes: `replaced` has name, old and new text."""
    return [Defect(name, path, old, new, tests) for name, old, new in replaced]
