"""Marked places of a page for the tables of a stored run, which keep the page consistent with the figures.

Shapes: a place is `<!-- MARK: NAME -->`, a blank line, the table, a blank line, and `<!-- end of MARK -->`; other marks
are ignored.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

__all__ = ["Places", "page_at"]


def page_at(text: str) -> Path:
    """Return the path of a page, for argparse's `type`: a missing page is reported before the slow steps."""
    path = Path(text)
    if not path.is_file():
        raise ArgumentTypeError(f"{text} is not there")
    return path


class Places:
    """The places of one mark on a page that names its run, `bench/results/PREFIX...json`, in backquotes."""

    def __init__(self, mark: str, prefix: str) -> None:
        self._mark = mark
        self._place = re.compile(rf"<!-- {mark}: ([a-z-]+) -->\n.*?<!-- end of {mark} -->", re.DOTALL)
        self._kept = re.compile(rf"`bench/results/({prefix}[\w-]*\.json)`")

    def filled(self, text: str, name: str, table: Callable[[str], str]) -> str:
        """Return a page with the output of `table` for each place, and the name of the run."""

        def place(found: re.Match[str]) -> str:
            return f"<!-- {self._mark}: {found[1]} -->\n\n{table(found[1])}\n\n<!-- end of {self._mark} -->"

        return self._kept.sub(f"`bench/results/{name}`", self._place.sub(place, text))

    def kept_name(self, text: str) -> str:
        """Return the name of the run that a page shows. Raises: ValueError if it names none."""
        found = self._kept.search(text)
        if not found:
            raise ValueError("the page names no kept run")
        return found[1]
