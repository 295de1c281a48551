"""Write log lines so that a slow reader of the log cannot stop the broker. An unread pipe blocks; a closed pipe and a
full disk fail. A line that could block is written by a thread. Lines that cannot be written in time are dropped and
counted, and the count is logged when lines can be written again.
"""

from __future__ import annotations

import json
import select
from collections import deque
from collections.abc import Callable
from threading import Condition, Lock, Thread
from typing import Final, TextIO

WAITING_MAX: Final = 10_000  # lines
LAST_WORDS_S: Final = 1.0  # how long a reader has to read the last lines
LINE_MAX: Final = 1024  # characters of a line that fits in what a pipe with room takes, 4096 bytes


class LogWriter:
    """A text stream for log lines that never blocks and never raises.

    The caller writes a line itself if that cannot block: it takes less time than to wake the thread.
    Invariant: lines are written in order; ``lost`` counts the dropped ones.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: deque[str] = deque()
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._closing = False
        self._behind = False  # the thread has lines to write
        self._takes_line = readiness(stream)
        self._told = 0
        self.lost = 0
        self._writer = Thread(target=self._run, name="log-writer", daemon=True)
        self._writer.start()

    def write(self, text: str) -> int:
        """Write a line if that cannot block; otherwise queue it, or drop it when too many wait."""
        with self._lock:  # a condition's own methods are Python's
            if not self._behind and len(text) <= LINE_MAX and self._takes_line():
                self._write([text])
            elif len(self._lines) >= WAITING_MAX:
                self.lost += 1
            else:
                self._behind = True
                self._lines.append(text)
                self._changed.notify()
        return len(text)

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
        self._writer.join(LAST_WORDS_S)
        return not self._writer.is_alive() and not self.lost

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._lines and not self._closing:
                    self._behind = False
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


def readiness(stream: TextIO) -> Callable[[], bool]:
    """Return a function that tells whether a stream takes a line now without blocking.

    A terminal may take less than a line, and stops while its user reads: it never does.
    """
    try:
        descriptor, terminal = stream.fileno(), stream.isatty()
    except (OSError, ValueError):  # not a file, or closed
        return lambda: False
    if terminal or not hasattr(select, "poll"):  # not on Windows
        return lambda: False
    asked = select.poll()
    asked.register(descriptor, select.POLLOUT)
    ready = [(descriptor, select.POLLOUT)]
    return lambda: asked.poll(0) == ready
