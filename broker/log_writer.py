"""Write log lines so that a slow reader of the log cannot stop the broker.

A thread writes the lines whose writing could block. Lines that cannot be written in time are dropped and counted; the
count is logged when lines can be written again.
"""

from __future__ import annotations

import json
import select
from collections import deque
from collections.abc import Callable
from threading import Condition, Lock, Thread
from typing import Final, TextIO

WAITING_MAX: Final = 10_000  # lines
CLOSE_TIMEOUT_S: Final = 1.0  # how long `close` waits for the last lines
LINE_MAX: Final = 1024  # characters: at most 4096 bytes, which a writable pipe accepts at once


class LogWriter:
    """A text stream for log lines, whose `write` neither blocks nor raises.

    The caller writes a line itself if that cannot block, which is faster than waking the thread.
    Invariant: lines are written in order; `lost` counts those that were dropped or could not be written.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: deque[str] = deque()
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._closing = False
        self._behind = False  # the thread has lines to write
        self._is_writable = writability(stream)
        self._reported = 0  # the number of lost lines in the last log.lost
        self.lost = 0
        self._writer = Thread(target=self._run, name="log-writer", daemon=True)
        self._writer.start()

    def write(self, text: str) -> int:
        """Write a line if that cannot block; otherwise queue it, or drop it when too many wait."""
        with self._lock:  # faster than `with self._changed`, whose methods are written in Python
            if not self._behind and len(text) <= LINE_MAX and self._is_writable():
                self._write([text])
            elif len(self._lines) >= WAITING_MAX:
                self.lost += 1
            else:
                self._behind = True
                self._lines.append(text)
                self._changed.notify()
        return len(text)

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        try:
            return self._stream.isatty()
        except ValueError:  # the process was started with the stream closed
            return False

    def close(self) -> bool:
        """Wait at most a second for the last lines, and return whether every line was written."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._writer.join(CLOSE_TIMEOUT_S)
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
                if self.lost > self._reported:
                    lost = self.lost
                    self._stream.write(json.dumps({"event": "log.lost", "level": "warning", "lines": lost}) + "\n")
                    self._reported = lost
            except (OSError, ValueError):
                self.lost += 1


def writability(stream: TextIO) -> Callable[[], bool]:
    """Return a function that returns whether a line can be written to a stream now without blocking.

    It returns False for a terminal, because its user can pause the output in the middle of a line.
    """
    try:
        descriptor, terminal = stream.fileno(), stream.isatty()
    except (OSError, ValueError):  # not a file, or closed
        return lambda: False
    if terminal or not hasattr(select, "poll"):  # not on Windows
        return lambda: False
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    writable = [(descriptor, select.POLLOUT)]
    return lambda: poll.poll(0) == writable
