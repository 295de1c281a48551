"""Shows the progress of a run: a bar for each part on a terminal, and its figures on standard output."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self


class Show:
    """The visible progress of a run."""

    def __init__(self) -> None:
        from rich import console, progress  # an optional package: only a run needs it

        self._out = console.Console(highlight=False, soft_wrap=True)
        self._progress: Any = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            console=console.Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("", visible=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, part: str, steps: int) -> None:
        """Show a part that takes `steps` steps."""
        self._progress.reset(self._task, total=steps, description=part, visible=True)

    def step(self, text: str) -> None:
        """Show that a step is done, and its outcome."""
        self._progress.update(self._task, advance=1, description=text)

    def tell(self, text: str) -> None:
        """Print a permanent line."""
        self._out.print(text, markup=False)
