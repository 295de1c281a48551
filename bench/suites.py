"""The suites: the parts of each, their extent, how its figures are shown, and the places of its pages for them."""

from __future__ import annotations

import argparse
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from bench.picture import Draw
from bench.run import Run
from bench.stage import Stage

NAMES: Final = ("messages", "topics", "growth", "cluster", "overlay", "pipeline")
"""The suites by the first word of the command line; without one it is the first."""
Part = Callable[[Any], None]


def page_at(text: str) -> Path:
    """Return the path of a page, for argparse's `type`: a missing page is reported before the slow steps."""
    path = Path(text)
    if not path.is_file():
        raise ArgumentTypeError(f"{text} is not there")
    return path


class Places:
    """The places of one mark on a page that names its run, `bench/results/SUITE...jsonl`, in backquotes.

    Shapes: a place is `<!-- MARK: NAME -->`, a blank line, the table, a blank line, and `<!-- end of MARK -->`; other
    marks are ignored.
    """

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


def _measure_parts(stage: Stage, options: argparse.Namespace, suite: Suite) -> None:
    """Measure part after part; one that fails leaves the figures of the others alone."""
    with suite.prepare(stage) as prepared:
        for name in options.only:
            if stage.late():
                stage.fail(name, "the time of this run was used up")
                continue
            with stage.guarded(name):
                suite.parts[name](prepared)


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite.

    Shapes: `parts` are what `--only` selects, each a function of what `prepare` provides; `plan` is a data class with
    the extent; `tables` are the places of its pages, of which `printed` are printed at the end of a run; `pictures`
    have a size and a function.
    Units: `limit_s` is the usual time limit of a run.
    """

    name: str
    about: str
    parts: Mapping[str, Part]
    plan: Any
    limit_s: float
    tables: Mapping[str, Callable[[Run], str]]
    printed: Sequence[str]
    mark: str
    pictures: Mapping[str, tuple[tuple[float, float], Draw]] = field(default_factory=dict)
    add_options: Callable[[argparse.ArgumentParser], None] = lambda _: None
    prepare: Callable[[Stage], AbstractContextManager[Any]] = nullcontext
    measure: Callable[[Stage, argparse.Namespace, Suite], None] = _measure_parts

    @property
    def places(self) -> Places:
        """The places on its pages."""
        return Places(self.mark, self.name, self.tables)


def suite_of(name: str) -> Suite:
    """Return a suite; only its own module is imported, because suites need different packages."""
    found: Suite = import_module(f"bench.{name}.suite").SUITE
    return found
