"""Show the progress of a run on standard error: one overwritten line on a terminal, else one line after another."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, TextIO

from broker.figures.numerals import duration_text, rate_text, share_text
from broker.perf.result import Interval

TERMINAL_EVERY_S: Final = 0.1
ELSEWHERE_EVERY_S: Final = 5.0
_COARSE_S: Final = 0.95  # shorter intervals need another digit to be distinct
_ERASE: Final = "\r\x1b[K"


class RunProgress(AbstractContextManager["RunProgress"]):
    """The progress display of a run; when quiet it shows nothing.

    Invariant: on a terminal each line overwrites the one before, and the last one is erased at exit.
    """

    def __init__(
        self, *, quiet: bool = False, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._live = self._stream.isatty()
        self._clock = clock
        self._stage = ""
        self._shared_at = 0.0
        self._line_shown = False

    def __exit__(self, *_: object) -> None:
        if self._line_shown:
            self._write(_ERASE)

    def share(self, stage: str, done: int, total: int) -> None:
        """Show the progress of a stage, at a readable rate; its start and end are always shown."""
        now = self._clock()
        every_s = TERMINAL_EVERY_S if self._live else ELSEWHERE_EVERY_S
        if stage == self._stage and done < total and now - self._shared_at < every_s:
            return
        self._stage, self._shared_at = stage, now
        part = f", {share_text(done / total)}" if total else ""
        self.show(f"{stage}  {done:,} of {total:,}{part}")

    def show(self, line: str) -> None:
        """Show a line until the next one."""
        if self._quiet:
            return
        if not self._live:
            self._write(f"{line}\n")
            return
        room = shutil.get_terminal_size().columns - 1  # a wrapped line cannot be overwritten
        self._write(f"{_ERASE}{line[:room]}")
        self._line_shown = True

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def interval_line(interval: Interval, seconds: float) -> str:
    """Return an interval as one line: end, rates and latency."""
    parts = [f"time {interval.at_s:.{1 if seconds >= _COARSE_S else 2}f} s"]
    for name in ("published", "confirmed", "delivered"):
        count = getattr(interval, name)
        if count or name != "confirmed":
            parts.append(f"{name} {rate_text(count / seconds if seconds > 0 else 0)}")
    if interval.latency_us is not None:
        parts.append(f"p50 {duration_text(interval.latency_us.p50)}")
        parts.append(f"p99 {duration_text(interval.latency_us.p99)}")
    return "  ".join(parts)
