"""A defect that is planted in a copy of the project, to see the tests catch it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Defect"]


class Defect(NamedTuple):
    """One defect: `old` occurs once in the file at `path`."""

    name: str
    path: str
    old: str
    new: str
    tests: Sequence[str]
