"""Polling with a deadline, which tests use in place of sleeping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from inspect import isawaitable
from typing import TypeVar

Value = TypeVar("Value")

DEADLINE_S = 120.0
"""The limit for any wait, on a machine with other work; a test that passes never reaches it."""
PAUSE_S = 0.01


def wait_until(condition: Callable[[], Value], what: str, deadline_s: float = DEADLINE_S) -> Value:
    """Return the first true value of `condition`; fail with the text `what` after the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s:g} s: {what}")
        time.sleep(PAUSE_S)


async def wait_until_async(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait until `condition`, or the awaitable it returns, is true; fail with the text `what` after the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if await value if isawaitable(value) else value:
            return
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s:g} s: {what}")
        await asyncio.sleep(PAUSE_S)
