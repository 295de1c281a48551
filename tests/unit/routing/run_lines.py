"""Counts the Python lines that a call runs, as a measure of its work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["TooMuchWork", "run_lines"]


class TooMuchWork(AssertionError):
    """A call ran more lines than allowed."""


def run_lines(call: Callable[[], object], most: int) -> int:
    """Run a call and return the number of Python lines it ran, 0 for compiled code. Raises: TooMuchWork."""
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
