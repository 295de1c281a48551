"""The Python lines that a call runs, as a measure of its work that it cannot hide."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["TooMuchWork", "run_lines"]


class TooMuchWork(AssertionError):
    """More lines ran than the visits account for."""


def run_lines(call: Callable[[], object], most: int) -> int:
    """Run a call and return the number of Python lines it ran; compiled code counts none. Raises: TooMuchWork."""
    lines = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
            if lines > most:
                raise TooMuchWork(f"line {frame.f_lineno} of {frame.f_code.co_filename}")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines
