"""Records the functions of the broker that run, in their order."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self

SUSPENDING: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a function: its file relative to the project's root, and its qualified name."""

    file: str
    function: str
    outermost: bool
    """Whether the event loop called it, instead of a function of the broker."""


class Tracer:
    """Records the calls of the broker's functions in this thread while the context is open.

    A lambda, a comprehension and a generator expression belong to the enclosing function. A generator or a coroutine
    counts as one call; resuming it does not count.
    """

    def __init__(self, root: Path) -> None:
        self.steps: list[Step] = []
        self._cut = len(str(root)) + 1
        self._home = f"{root / 'broker'}/"
        self._suspended: set[FrameType] = set()

    def __enter__(self) -> Self:
        sys.setprofile(self._record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.setprofile(None)
        self._suspended.clear()

    def _record(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(self._home) or code.co_name.startswith("<"):
            return
        if code.co_flags & SUSPENDING:
            if frame in self._suspended:
                return
            self._suspended.add(frame)
        self.steps.append(Step(code.co_filename[self._cut :], code.co_qualname, not self._is_inside(frame.f_back)))

    def _is_inside(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code.co_filename.startswith(self._home) and not frame.f_code.co_name.startswith("<"):
                return True
            frame = frame.f_back
        return False


def functions(steps: list[Step]) -> list[Step]:
    """Return each function once, at its first call."""
    found: dict[tuple[str, str], Step] = {}
    for step in steps:
        found.setdefault((step.file, step.function), step)
    return list(found.values())


def files(steps: list[Step]) -> list[str]:
    """Return each file once, at its first call."""
    return list(dict.fromkeys(step.file for step in steps))


def entries(steps: list[Step]) -> list[str]:
    """Return the files in the order of the calls, with consecutive calls in one file counted once."""
    return [step.file for at, step in enumerate(steps) if not at or steps[at - 1].file != step.file]


def reentries(steps: list[Step]) -> int:
    """Count how often a call enters a file again after calls in other files."""
    return len(entries(steps)) - len(files(steps))
