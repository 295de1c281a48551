"""The marked places of a page that hold the tables of a kept run, so that page and figures cannot disagree.

Shapes: a place is `<!-- MARK: NAME -->`, a blank line, the table, a blank line, and `<!-- end of MARK -->`; other marks
are others' business.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

__all__ = ["Places", "page_at"]


def page_at(text: str) -> Path:
    """Return the path of a page, for argparse's `type`: that it is missing is told before anything takes time."""
    path = Path(text)
    if not path.is_file():
        raise ArgumentTypeError(f"{text} is not there")
    return path


class Places:
    """Those of one mark on a page that names the run it shows, `bench/results/PREFIX...json`, in backquotes."""

    def __init__(self, mark: str, prefix: str) -> None:
        self._mark = mark
        self._place = re.compile(rf"<!-- {mark}: ([a-z-]+) -->\n.*?<!-- end of {mark} -->", re.DOTALL)
        self._kept = re.compile(rf"`bench/results/({prefix}[\w-]*\.json)`")

    def filled(self, text: str, name: str, table: Callable[[str], str]) -> str:
        """Return a page with what `table` makes for each place, and the name of the run."""

        def place(found: re.Match[str]) -> str:
            return f"<!-- {self._mark}: {found[1]} -->\n\n{table(found[1])}\n\n<!-- end of {self._mark} -->"

        return self._kept.sub(f"`bench/results/{name}`", self._place.sub(place, text))

    def kept_name(self, text: str) -> str:
        """Return the name of the run that a page shows. Raises: ValueError if it names none."""
        found = self._kept.search(text)
        if not found:
            raise ValueError("the page names no kept run")
        return found[1]
