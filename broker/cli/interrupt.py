"""Interrupts of a command that can stop in good order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["first_interrupt"]


@contextmanager
def first_interrupt(action: Callable[[], object]) -> Iterator[None]:
    """Call `action` at the first interrupt instead of raising KeyboardInterrupt; a second one raises it."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield
        return

    def hear(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        action()

    before = signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
