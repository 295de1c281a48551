"""`slotmq top`: a live view of the queues with rates, lengths, the age of the oldest message, and consumers."""

from __future__ import annotations

import argparse
import codecs
import os
import re
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Final, Self

from broker.cli.broker_url import broker_of
from broker.cli.control_client import Unanswered, ask
from broker.cli.parser import BadUsage, add_any_vhost, add_command, add_switch, add_value, finish
from broker.cli.table import print_json, print_rows
from broker.cli.top_view import SORT_KEYS, TopView

ENTER: Final = "\x1b[?1049h\x1b[?25l"  # use the alternate screen, and hide the cursor
LEAVE: Final = "\x1b[?25h\x1b[?1049l"
HOME: Final = "\x1b[H"
CLEAR_LINE: Final = "\x1b[K"
KEY: Final = re.compile(r"\x1b[\[O][A-D]|\x1b\[[56]~|.", re.DOTALL)
KEY_NAMES: Final = {"A": "up", "B": "down", "C": "right", "D": "left", "5~": "page up", "6~": "page down"}
KEY_BYTES_MAX: Final = 64
END: Final = "\x04"  # Ctrl-D; also returned when the terminal was closed
STYLES: Final = re.compile(r"\x1b\[[0-9;]*m")


class TopTerminal:
    """Show lines and read keys. Leaving the context restores the terminal."""

    def __init__(self) -> None:
        self._in = sys.stdin.fileno()
        self._typed: deque[str] = deque()
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")  # a read may end within a character
        self._before: list[Any] = []
        self._wakes: tuple[int, int] = (-1, -1)  # a pipe to which `_wake` writes at a resize, to end the wait for a key
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
        return shutil.get_terminal_size()

    def show(self, lines: Sequence[str]) -> None:
        """Draw lines over the current ones."""
        drawn = f"{CLEAR_LINE}\r\n".join(lines)
        self._write(f"{HOME}{STYLES.sub('', drawn) if self._plain else drawn}{CLEAR_LINE}")

    def key(self, timeout_s: float | None) -> str:
        """Return the next key, or an empty text after the timeout or when the terminal was resized."""
        if self._typed:
            return self._next()
        ready, _, _ = select.select([self._in, self._wakes[0]], [], [], timeout_s)
        if self._wakes[0] in ready:
            os.read(self._wakes[0], KEY_BYTES_MAX)
        if self._in not in ready:
            return ""
        octets = os.read(self._in, KEY_BYTES_MAX)
        self._typed += KEY.findall(self._decoder.decode(octets)) if octets else [END]
        return self._next()

    def _next(self) -> str:
        key = self._typed.popleft() if self._typed else ""
        return KEY_NAMES[key[2:]] if len(key) > 1 else "escape" if key == "\x1b" else key

    def _wake(self, _number: int, _frame: FrameType | None) -> None:
        with suppress(BlockingIOError):  # the pipe is full: a wake-up is pending
            os.write(self._wakes[1], b"\n")

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


INTERVAL_S: Final = 2.0
INTERVAL_MIN_S: Final = 0.5
INTERVAL_MAX_S: Final = 3600.0
ROWS: Final = 20
ROWS_MAX: Final = 500
COLUMNS: Final = ("vhost", "name", "state", "publish", "deliver", "ack", "ready", "unacked", "age", "consumers")


def add_top(commands: Any) -> None:
    """Add the command."""
    command = add_command(commands, "top", "watch the queues: rates, lengths, age of the oldest message; q quits")
    keys = f"{', '.join(SORT_KEYS)}; default {SORT_KEYS[0]}"
    add_value(command, "--sort", "KEY", keys, choices=SORT_KEYS, default=SORT_KEYS[0])
    add_switch(command, "--reverse", "the smallest first")
    add_value(command, "--filter", "TEXT", "only queues whose name contains TEXT", default="")
    add_any_vhost(command)
    add_value(
        command, "--interval", "S", f"seconds between updates, default {INTERVAL_S:g}", type=float, default=INTERVAL_S
    )
    add_switch(command, "--once", "print one table and end, as without a terminal")
    add_value(command, "--limit", "N", f"rows of that table, default {ROWS}", type=int, default=ROWS)
    finish(command, _top, json=True)


def _top(arguments: argparse.Namespace) -> None:
    if not INTERVAL_MIN_S <= arguments.interval <= INTERVAL_MAX_S:
        raise BadUsage(f"--interval should be from {INTERVAL_MIN_S:g} to {INTERVAL_MAX_S:g} seconds")
    if not 1 <= arguments.limit <= ROWS_MAX:
        raise BadUsage(f"--limit should be from 1 to {ROWS_MAX}")
    view = TopView(arguments.sort, arguments.filter, arguments.vhost, reverse=arguments.reverse)
    broker = broker_of(arguments)

    def fetch(limit: int) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = ask(broker, "top", limit=min(limit, ROWS_MAX), **view.request())
        return answer

    if arguments.json:
        print_json(fetch(arguments.limit))
    elif arguments.once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        print_rows(fetch(arguments.limit)["queues"], COLUMNS, as_json=False)
    else:
        with suppress(KeyboardInterrupt):
            _watch(view, fetch, arguments.interval)


def _watch(view: TopView, fetch: Any, interval_s: float) -> None:
    """Show the view until the user quits. Raises: Unanswered if the first request fails; BadUsage."""
    view.update(fetch(1))
    with TopTerminal() as terminal:
        due_s = time.monotonic()
        while True:
            size = terminal.size()
            if not view.paused and time.monotonic() >= due_s:
                try:
                    view.update(fetch(view.rows_of(size.lines)))
                except Unanswered as problem:
                    view.fail(str(problem))
                due_s = time.monotonic() + interval_s
            terminal.show(view.lines(size))
            key = terminal.key(None if view.paused else max(0.0, due_s - time.monotonic()))
            if key and not view.press(key):
                return
            if key and view.changed:
                due_s = time.monotonic()
