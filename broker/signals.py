"""Handlers of SIGHUP, SIGTERM and SIGINT, from the start of the broker's process to its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, Final

STOPS: Final = (signal.SIGTERM, signal.SIGINT)


def exit_on_stop_signals() -> None:
    """Exit at once with code 0 on SIGTERM and SIGINT, and ignore SIGHUP, while the process has nothing to stop."""
    for number in STOPS:
        signal.signal(number, lambda _number, _frame: os._exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


class Signals:
    """Call the listener of each received signal, or remember the signal until it has a listener.

    The handlers belong to the process, not to the loop: a loop removes its handlers when it closes, and a signal
    after that would end the process with an exit code of its own. Create an instance in the main thread.
    """

    def __init__(self) -> None:
        self._listeners: dict[int, Callable[[], object]] = {}
        self._received: set[int] = set()
        for number in (signal.SIGHUP, *STOPS):
            signal.signal(number, self._handle)

    def listen(self, notify: Callable[[], object], *numbers: int) -> None:
        """Call `notify` in the main thread for each of these signals, and now if one was received before."""
        self._listeners.update(dict.fromkeys(numbers, notify))
        if not self._received.isdisjoint(numbers):
            notify()

    def close(self) -> None:
        """Ignore the signals until the process ends, so that they cannot change its exit code."""
        for number in (signal.SIGHUP, *STOPS):
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, _frame: Any) -> None:
        self._received.add(number)
        notify = self._listeners.get(number)
        if notify is not None:
            notify()
