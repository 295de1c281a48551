"""Writes log lines in a thread of its own, so that a slow reader of the log cannot stop the broker.

A pipe that nobody reads blocks; a closed pipe and a full disk fail. Lines that cannot be written in time are dropped
and counted, and the count is logged when lines can be written again.
"""

from __future__ import annotations

import json
from collections import deque
from threading import Condition, Thread
from typing import Final, TextIO

__all__ = ["LogWriter"]

WAITING_MAX: Final = 10_000  # lines
LAST_WORDS_S: Final = 1.0  # how long a reader has to take the last lines


class LogWriter:
    """A text stream for log lines that never blocks and never raises.

    Invariant: lines are written in order; ``lost`` counts the dropped ones.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: deque[str] = deque()
        self._changed = Condition()
        self._closing = False
        self._told = 0
        self.lost = 0
        self._thread = Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        """Queue a line, or drop it when too many wait."""
        with self._changed:
            if len(self._lines) >= WAITING_MAX:
                self.lost += 1
            else:
                self._lines.append(text)
                self._changed.notify()
        return len(text)

    def flush(self) -> None:
        """Do nothing: the thread flushes what it writes."""

    def isatty(self) -> bool:
        """Return whether a person is likely to read the lines."""
        try:
            return self._stream.isatty()
        except ValueError:  # the stream was closed before the process began
            return False

    def close(self) -> bool:
        """Wait a moment for the last lines, and return whether every line was written."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(LAST_WORDS_S)
        return not self._thread.is_alive() and not self.lost

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._lines and not self._closing:
                    self._changed.wait()
                if not self._lines:
                    return
                lines = list(self._lines)
                self._lines.clear()
            self._write(lines)

    def _write(self, lines: list[str]) -> None:
        for line in lines:
            try:
                self._stream.write(line)
                self._stream.flush()
                if self.lost > self._told:
                    told = self.lost
                    self._stream.write(json.dumps({"event": "log.lost", "level": "warning", "lines": told}) + "\n")
                    self._told = told
            except (OSError, ValueError):
                self.lost += 1
