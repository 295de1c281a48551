"""SIGHUP, which a broker outlives from its first moment to its last."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

__all__ = ["HangUp"]


class HangUp:
    """Hears SIGHUP: calls whoever listens, or remembers it for who will.

    A handler of the process, not of the loop: a loop does not hear while it is made, and takes its handlers away when
    it closes, after which the signal would end the process. Call it in the main thread.
    """

    def __init__(self) -> None:
        self._tell: Callable[[], object] | None = None
        self._heard = False
        signal.signal(signal.SIGHUP, self._hear)

    def listen(self, tell: Callable[[], object]) -> None:
        """Call `tell`, between any two steps of the main thread, for each signal; now, when there was one before."""
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
