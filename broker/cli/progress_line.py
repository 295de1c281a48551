"""The progress of a command on standard error: one line that is overwritten on a terminal, nothing elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

ERASE: Final = "\r\x1b[K"


class ProgressLine:
    """A line that shows the latest progress, and is cleared at the end."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._live = not quiet and sys.stderr.isatty()
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shown:
            print(ERASE, end="", file=sys.stderr, flush=True)

    def show(self, line: str) -> None:
        """Show the progress, cut to the width of the terminal."""
        if self._live:
            self._shown = True
            room = os.get_terminal_size(sys.stderr.fileno()).columns - 1  # a line that wraps cannot be overwritten
            print(f"{ERASE}{line[:room]}", end="", file=sys.stderr, flush=True)

    def show_step(self, progress: Mapping[str, Any]) -> None:
        """Show the broker's progress in a step of its work."""
        self.show(f"{progress['step']}: {share_of(progress['done'], progress['total'])}")


def share_of(done: int, total: int) -> str:
    """Return the completed share as text."""
    return f"{done:,} of {total:,} ({done * 100 // total if total else 100} %)"
