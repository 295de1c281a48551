"""The suites: the parts of each, their extent, and the tables and pictures for the pages of the documentation."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from bench.picture import Draw
from bench.run import Run
from bench.stage import Stage

NAMES: Final = ("messages", "topics", "growth", "cluster", "overlay", "pipeline")
"""The suites by the first word of the command line; the first suite is the default."""
Part = Callable[[Any], None]


def _measure_parts(stage: Stage, options: argparse.Namespace, suite: Suite) -> None:
    """Measure one part after the other; a failure of one does not end the run."""
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

    Shapes: `parts` are selected by `--only`, each a function of what `prepare` provides; `plan` is a data class with
    the extent; `tables` has a function for each place in the pages, of which `printed` are printed after a run;
    `pictures` have a size and a function.
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

    def filled(self, text: str, run: Run, name: str) -> str:
        """Return a page with the tables of a saved run in the suite's places, and with the name of the run's file.

        Shapes: a place is `<!-- MARK: NAME -->`, a blank line, the table, a blank line, and `<!-- end of MARK -->`;
        other marks are ignored. Raises: KeyError for an unknown place.
        """

        def place(found: re.Match[str]) -> str:
            made = self.tables[found[1]](run) or "(Not measured in this run.)"
            return f"<!-- {self.mark}: {found[1]} -->\n\n{made}\n\n<!-- end of {self.mark} -->"

        text = re.sub(rf"<!-- {self.mark}: ([a-z-]+) -->\n.*?<!-- end of {self.mark} -->", place, text, flags=re.DOTALL)
        return re.sub(rf"`bench/results/{self.name}-[\w-]*\.jsonl?`", f"`bench/results/{name}`", text)


def suite_of(name: str) -> Suite:
    """Return a suite; only its own module is imported, because suites need different packages."""
    found: Suite = import_module(f"bench.{name}.suite").SUITE
    return found
