"""SIGHUP: ignored or handled from the first moment of the process to its last."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

__all__ = ["HangUp"]


class HangUp:
    """Handles SIGHUP: calls the listener, or remembers the signal until there is one.

    It is a handler of the process, not of the loop: a loop removes its handlers when it closes, after which the signal
    would end the process. Create it in the main thread.
    """

    def __init__(self) -> None:
        self._tell: Callable[[], object] | None = None
        self._heard = False
        signal.signal(signal.SIGHUP, self._hear)

    def listen(self, tell: Callable[[], object]) -> None:
        """Call `tell` in the main thread for each signal; at once if there was one before."""
        self._tell = tell
        if self._heard:
            tell()

    def close(self) -> None:
        """Ignore the signal from here to the end of the process."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _hear(self, _number: int, _frame: Any) -> None:
        self._heard = True
        if self._tell is not None:
            self._tell()
