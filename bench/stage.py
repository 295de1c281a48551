"""The state shared by the parts of a run, and the loop over contestants in turn."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import Any
from uuid import uuid4

from bench.run import Run
from bench.service import BrokerFailed
from bench.tables import formatter_of
from broker.perf.faults import Fault, RunFailed

COMPILED, INTERPRETED = "compiled", "interpreted"
_PRINTED_FIGURES = 4
_PRINTED_FIRST = ("per_s", "cpu_us", "p50_us", "p99_us")


class WrongResult(Exception):
    """A measured program gave a wrong result, so its figures do not count."""


class NotOffered(Exception):
    """A contestant lacks a feature that a measurement needs: it has no figures there, which is no failure."""


EXPECTED = (BrokerFailed, RunFailed, Fault, WrongResult, OSError)
"""Exceptions that end a measurement, but not the run."""


def extent(full: Any, quick: Any) -> Any:
    """Return a field of a plan that is smaller in a quick run."""
    return field(default=full, metadata={"quick": quick})


def quick(plan: Any) -> Any:
    """Return the plan of a quick run."""
    return replace(plan, **{one.name: one.metadata["quick"] for one in fields(plan) if one.metadata})


def tell(text: str) -> None:
    """Print a line, and flush it."""
    print(text, flush=True)


@dataclass(slots=True)
class Stage:
    """The state shared by the parts of a run.

    Shapes: `packages` has the folder of the broker's package by form; the first one is the product.
    Units: no measurement starts after the `deadline` of the monotonic clock.
    """

    plan: Any
    packages: Mapping[str, Path]
    folder: Path
    run: Run
    deadline: float = inf
    tell: Callable[[str], None] = tell

    @property
    def package(self) -> Path:
        return next(iter(self.packages.values()))

    def new_folder(self) -> Path:
        """Return a folder that does not exist yet."""
        return self.folder / uuid4().hex[:8]

    def late(self) -> bool:
        """Return whether the time of the run is used up."""
        return time.monotonic() > self.deadline

    def add(self, part: str, figures: Mapping[str, Any], **key: Any) -> None:
        """Add the figures of one round to a cell of the run, and print the most important ones."""
        self.run.add(part, figures, **key)
        names = [name for name, value in figures.items() if isinstance(value, (int, float))]
        names.sort(key=lambda name: _PRINTED_FIRST.index(name) if name in _PRINTED_FIRST else len(_PRINTED_FIRST))
        printed = ", ".join(f"{name} {formatter_of(name)(figures[name])}" for name in names[:_PRINTED_FIGURES])
        self.tell(f"{part:14} {' '.join(str(value) for value in key.values()):32} {printed}")

    def fail(self, what: str, error: object) -> None:
        """Record and print a failed measurement."""
        text = f"{what}: {(str(error).strip() or type(error).__name__).splitlines()[-1]}"
        self.run.failures.append(text)
        self.tell(f"FAILED: {text}")

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Record an exception of the block as a failure, and suppress it."""
        try:
            yield
        except NotOffered:
            return
        except EXPECTED as error:
            self.fail(what, error)
        except Exception as error:  # noqa: BLE001 - a defect in one part must not cost the figures of the others
            traceback.print_exc()
            self.fail(what, f"{type(error).__name__}: {error}")

    def in_turn(self, works: Mapping[str, Callable[[int], object]], rounds: int) -> None:
        """Call each work with the number of each round, in an order that rotates: A B C, B C A.

        So a change of the machine's speed affects all equally. A work that fails is skipped in later rounds.
        """
        names = list(works)
        for number in range(rounds):
            first = number % len(works)
            for name in [one for one in (*list(works)[first:], *list(works)[:first]) if one in names]:
                if self.late():
                    self.run.facts["cut_short"] = True
                    return
                failures = len(self.run.failures)
                with self.guarded(name):
                    works[name](number)
                if len(self.run.failures) > failures:
                    names.remove(name)
