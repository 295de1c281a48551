"""The signals of a broker's process: SIGHUP, SIGTERM and SIGINT, from its first moment to its last."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, Final

STOPS: Final = (signal.SIGTERM, signal.SIGINT)


def end_at_once() -> None:
    """End the process at once with exit code 0 on a signal to stop, and ignore SIGHUP: nothing has begun yet."""
    for number in STOPS:
        signal.signal(number, lambda _number, _frame: os._exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


class Signals:
    """Pass each signal on to its listener, or remember it until there is one.

    They are handlers of the process, not of the loop: a loop removes its handlers when it closes, after which a signal
    would end the process with an exit code of its own. Create it in the main thread.
    """

    def __init__(self) -> None:
        self._listeners: dict[int, Callable[[], object]] = {}
        self._heard: set[int] = set()
        for number in (signal.SIGHUP, *STOPS):
            signal.signal(number, self._hear)

    def listen(self, tell: Callable[[], object], *numbers: int) -> None:
        """Call `tell` in the main thread for each of these signals; at once if there was one before."""
        self._listeners.update(dict.fromkeys(numbers, tell))
        if not self._heard.isdisjoint(numbers):
            tell()

    def close(self) -> None:
        """Ignore the signals from here to the end of the process: it ends with the exit code that it has now."""
        for number in (signal.SIGHUP, *STOPS):
            signal.signal(number, signal.SIG_IGN)

    def _hear(self, number: int, _frame: Any) -> None:
        self._heard.add(number)
        tell = self._listeners.get(number)
        if tell is not None:
            tell()
