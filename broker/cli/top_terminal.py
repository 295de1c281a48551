"""The terminal of `slotmq top`: a screen of its own, keys without echo, and everything as before at the end."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import sys
import termios
import tty
from collections import deque
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Final, Self

__all__ = ["TopTerminal"]

ENTER: Final = "\x1b[?1049h\x1b[?25l"  # the alternate screen, and no cursor
LEAVE: Final = "\x1b[?25h\x1b[?1049l"
HOME: Final = "\x1b[H"
CLEAR_LINE: Final = "\x1b[K"
KEY: Final = re.compile(r"\x1b[\[O][A-D]|\x1b\[[56]~|.", re.DOTALL)
KEY_NAMES: Final = {"A": "up", "B": "down", "C": "right", "D": "left", "5~": "page up", "6~": "page down"}
KEY_BYTES_MAX: Final = 64
END: Final = "\x04"  # Ctrl-D, and a terminal that is gone
STYLES: Final = re.compile(r"\x1b\[[0-9;]*m")


class TopTerminal:
    """Shows lines and reads keys. Must be left, which restores the terminal."""

    def __init__(self) -> None:
        self._in = sys.stdin.fileno()
        self._typed: deque[str] = deque()
        self._before: list[Any] = []
        self._wakes: tuple[int, int] = (-1, -1)
        self._plain = "NO_COLOR" in os.environ

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._in)
        tty.setcbreak(self._in)
        self._wakes = os.pipe()
        os.set_blocking(self._wakes[1], False)
        self._resized = signal.signal(signal.SIGWINCH, self._wake)
        self._write(ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGWINCH, self._resized)
        termios.tcsetattr(self._in, termios.TCSADRAIN, self._before)
        self._write(LEAVE)
        for descriptor in self._wakes:
            os.close(descriptor)

    def size(self) -> os.terminal_size:
        """Return columns and lines."""
        return shutil.get_terminal_size()

    def show(self, lines: Sequence[str]) -> None:
        """Draw the lines over what is shown."""
        drawn = f"{CLEAR_LINE}\r\n".join(lines)
        self._write(f"{HOME}{STYLES.sub('', drawn) if self._plain else drawn}{CLEAR_LINE}")

    def key(self, timeout_s: float | None) -> str:
        """Return the next key, or nothing after the time or when the window has a new size."""
        if self._typed:
            return self._next()
        ready, _, _ = select.select([self._in, self._wakes[0]], [], [], timeout_s)
        if self._wakes[0] in ready:
            os.read(self._wakes[0], KEY_BYTES_MAX)
        if self._in not in ready:
            return ""
        typed = os.read(self._in, KEY_BYTES_MAX).decode(errors="ignore")
        self._typed += KEY.findall(typed or END)
        return self._next()

    def _next(self) -> str:
        key = self._typed.popleft() if self._typed else ""
        return KEY_NAMES[key[2:]] if len(key) > 1 else "escape" if key == "\x1b" else key

    def _wake(self, _number: int, _frame: FrameType | None) -> None:
        try:
            os.write(self._wakes[1], b"\n")
        except BlockingIOError:  # enough wake-ups wait
            pass

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
