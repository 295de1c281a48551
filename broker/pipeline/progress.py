"""The progress of a job on standard error: one line that is written over on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Final, TextIO

__all__ = ["Progress"]

TERMINAL_EVERY_S: Final = 0.25
ELSEWHERE_EVERY_S: Final = 5.0
ERASE: Final = "\r\x1b[K"


class Progress:
    """Counts what a job has done, and tells.

    Shapes: `lag_slots` are those that wait; None where nobody knows.
    Invariant: any thread may count, as Spark tells of its batches on one of its own.
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
        self.lag_slots: int | None = None
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._quiet = quiet
        self._clock = clock
        self._began = clock()
        self._told_at = self._began if not self._live else self._began - TERMINAL_EVERY_S
        self._told = False
        self._step = ""
        self._lock = threading.Lock()

    def add(self, *, slots: int = 0, rows: int = 0, bytes_: int = 0, lag_slots: int | None = None) -> None:
        """Count what was done since, and tell if it is time to."""
        with self._lock:
            self.slots += slots
            self.rows += rows
            self.bytes += bytes_
            if lag_slots is not None:
                self.lag_slots = lag_slots
            self._tell()

    def step(self, name: str) -> None:
        """Names what the job does now; on a terminal it is seen at once."""
        with self._lock:
            self._step = name
            if self._live:
                self._told_at = self._clock() - TERMINAL_EVERY_S
            self._tell()

    def say(self, line: str) -> None:
        """Write a line that stays."""
        with self._lock:
            if self._quiet:
                return
            self._stream.write(f"{ERASE}{line}\n" if self._live else f"{line}\n")
            self._stream.flush()

    def close(self) -> None:
        """Leave the terminal's line to what comes next."""
        with self._lock:
            if self._live and self._told:
                self._stream.write(ERASE)
                self._stream.flush()
            self._quiet = True

    @property
    def elapsed_s(self) -> float:
        """How long the job has run."""
        return self._clock() - self._began

    def line(self) -> str:
        """Return how far the job is, as one line."""
        parts = [self.job]
        if self._step:
            parts.append(self._step)
        if self.slots:
            parts.append(_counted(self.slots, "slot"))
        if self.rows:
            elapsed_s = self.elapsed_s
            parts.append(_counted(self.rows, "row"))
            if elapsed_s > 0:
                parts.append(f"{self.rows / elapsed_s:,.0f} rows/s")
        if self.lag_slots is not None:
            parts.append(f"{_counted(self.lag_slots, 'slot')} to go")
        return "  ".join(parts)

    def _tell(self) -> None:
        if self._quiet:
            return
        now = self._clock()
        if now - self._told_at < (TERMINAL_EVERY_S if self._live else ELSEWHERE_EVERY_S):
            return
        self._told_at = now
        self._told = True
        self._stream.write(f"{ERASE}{self.line()}" if self._live else f"{self.line()}\n")
        self._stream.flush()


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
