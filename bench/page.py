"""Marked places of a page for the tables of a kept run, which keep the page consistent with the figures.

Shapes: a place is `<!-- MARK: NAME -->`, a blank line, the table, a blank line, and `<!-- end of MARK -->`; other marks
are ignored.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.run import Run


def page_at(text: str) -> Path:
    """Return the path of a page, for argparse's `type`: a missing page is reported before the slow steps."""
    path = Path(text)
    if not path.is_file():
        raise ArgumentTypeError(f"{text} is not there")
    return path


class Places:
    """The places of one mark on a page that names its run, `bench/results/SUITE...jsonl`, in backquotes."""

    def __init__(self, mark: str, suite: str, tables: Mapping[str, Callable[[Run], str]]) -> None:
        self._mark = mark
        self._tables = tables
        self._place = re.compile(rf"<!-- {mark}: ([a-z-]+) -->\n.*?<!-- end of {mark} -->", re.DOTALL)
        self._kept = re.compile(rf"`bench/results/({suite}-[\w-]*\.jsonl?)`")

    def filled(self, text: str, run: Run, name: str) -> str:
        """Return a page with the tables and the name of a kept run. Raises: KeyError for an unknown place."""

        def place(found: re.Match[str]) -> str:
            made = self._tables[found[1]](run) or "(Not measured in this run.)"
            return f"<!-- {self._mark}: {found[1]} -->\n\n{made}\n\n<!-- end of {self._mark} -->"

        return self._kept.sub(f"`bench/results/{name}`", self._place.sub(place, text))

    def kept_name(self, text: str) -> str:
        """Return the name of the run that a page shows. Raises: ValueError if it names none."""
        found = self._kept.search(text)
        if not found:
            raise ValueError("the page names no kept run")
        return found[1]
