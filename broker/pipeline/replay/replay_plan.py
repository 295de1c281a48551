"""The steps of a replay: runs of slots in the order of their seals, and the position of an earlier run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["BadReplayState", "PlannedRows", "ReplayState", "Step", "digest", "steps_of"]

STEP_ROWS: Final = 250_000
STEP_S: Final = 10.0  # the maximum duration of a step, if rate or speed determine it
FORMAT: Final = 1


class BadReplayState(ValueError):
    """A state that belongs to another replay, or cannot be read; the text is one line for the user."""


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """The number of selected rows in a slot, and the times of the first and the last of them."""

    seal: int
    rows: int
    first_us: int
    last_us: int


@dataclass(frozen=True, slots=True)
class Step:
    """The seals from `first` to `last`, both included."""

    first: int
    last: int
    rows: int


def steps_of(slots: Iterable[PlannedRows], *, rate: float = 0.0, speed: float = 0.0, done: int = -1) -> list[Step]:
    """Return the steps after the seal `done`, each short enough for a regular progress report.

    Rows of snapshots, which have no seal, come first and are repeated by every run.
    """
    limit = min(STEP_ROWS, max(1, int(rate * STEP_S))) if rate else STEP_ROWS
    steps: list[Step] = []
    began_us = 0
    for slot in sorted(slots, key=lambda slot: slot.seal):
        if 0 < slot.seal <= done:
            continue
        if steps and slot.seal:
            open_ = steps[-1]
            long = bool(speed) and (slot.last_us - began_us) / 1e6 / speed > STEP_S
            if open_.first and open_.rows + slot.rows <= limit and not long:
                steps[-1] = Step(open_.first, slot.seal, open_.rows + slot.rows)
                continue
        steps.append(Step(slot.seal, slot.seal, slot.rows))
        began_us = slot.first_us
    return steps


def digest(what: Mapping[str, Any]) -> str:
    """Return a short name that identifies the replay: its selection and its target."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(slots=True)
class ReplayState:
    """The position of one producer's replay, in a file that is replaced atomically.

    Invariant: every message up to the seal `done` is confirmed or among the refused.
    """

    path: Path
    selection: str
    done: int = -1
    published: int = 0
    refused: int = 0

    def resume(self) -> None:
        """Read the position from the file, if it exists. Raises: BadReplayState."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise BadReplayState(f"{self.path}: cannot be read: {error}") from None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise BadReplayState(f"{self.path}: is no state of a replay, or of another version")
        if found.get("selection") != self.selection:
            raise BadReplayState(f"{self.path}: the producer replayed something else, or to somewhere else")
        self.done, self.published, self.refused = found["done"], found["published"], found["refused"]

    def advance(self, step: Step, published: int, refused: int) -> None:
        """Record that a step is done."""
        self.done = max(self.done, step.last)
        self.published += published
        self.refused += refused
        values = {
            "format": FORMAT,
            "selection": self.selection,
            "done": self.done,
            "published": self.published,
            "refused": self.refused,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        writing = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with writing.open("w", encoding="utf-8") as file:
            json.dump(values, file)
            file.flush()
            os.fsync(file.fileno())
        writing.replace(self.path)
