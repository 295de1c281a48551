"""The progress of a job on standard error: on a terminal a line that is updated, otherwise a new line now and then."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TextIO

from broker.figures.numerals import many, size_text, span_text

if TYPE_CHECKING:
    from broker.slot_files.seal_view import Lag

ELSEWHERE_EVERY_S: Final = 5.0
REFRESHES_PER_S: Final = 4  # on a terminal


class Progress:
    """Counts the work of a job, and shows it.

    Shapes: `lag` is the remaining work, None if unknown.
    Invariant: any thread may count; Spark reports its batches on a thread of its own.
    """

    def __init__(
        self,
        job: str,
        *,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job = job
        self.slots = 0
        self.rows = 0
        self.bytes = 0
        self.lag: Lag | None = None
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._clock = clock
        self._began = self._told_at = clock()
        self._step = ""
        self._lock = threading.Lock()
        self._status: Any = None  # on a terminal
        if not quiet and self._stream.isatty():
            from rich.console import Console

            console = Console(file=self._stream, markup=False, highlight=False)
            self._status = console.status(job, refresh_per_second=REFRESHES_PER_S)
            self._status.start()

    def add(self, *, slots: int = 0, rows: int = 0, bytes_: int = 0, lag: Lag | None = None) -> None:
        """Count the work since the last call, and show it if due."""
        with self._lock:
            self.slots += slots
            self.rows += rows
            self.bytes += bytes_
            if lag is not None:
                self.lag = lag
            self._tell()

    def step(self, name: str) -> None:
        """Name the current step of the job."""
        with self._lock:
            self._step = name
            self._tell()

    def say(self, line: str) -> None:
        """Write a permanent line."""
        with self._lock:
            if self._status is not None:
                self._status.console.print(line, soft_wrap=True)
            elif not self._quiet:
                self._stream.write(f"{line}\n")
                self._stream.flush()

    def close(self) -> None:
        """Clear the line so that the terminal is free for the next output."""
        with self._lock:
            self._quiet = True
            if self._status is not None:
                self._status.stop()
                self._status = None

    @property
    def elapsed_s(self) -> float:
        """The time since the job began."""
        return self._clock() - self._began

    def line(self) -> str:
        """Return the progress of the job as one line."""
        parts = [self.job]
        if self._step:
            parts.append(self._step)
        if self.slots:
            parts.append(many(self.slots, "slot"))
        if self.rows:
            parts.append(many(self.rows, "row"))
            if self.elapsed_s > 0:
                parts.append(f"{self.rows / self.elapsed_s:,.0f} rows/s")
        if self.lag is not None:
            parts.append(f"{many(self.lag['lag_slots'], 'slot')} to go")
            if self.lag["lag_slots"]:
                parts += [size_text(self.lag["lag_bytes"]), f"{span_text(self.lag['lag_s'])} behind"]
        return "  ".join(parts)

    def _tell(self) -> None:
        if self._status is not None:
            self._status.update(self.line())
        elif not self._quiet and self._clock() - self._told_at >= ELSEWHERE_EVERY_S:
            self._told_at = self._clock()
            self._stream.write(f"{self.line()}\n")
            self._stream.flush()
