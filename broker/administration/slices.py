"""Slices of long work: the loop turns between them, so that a client waits for one slice and not for the work."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Final, TypeVar

STEPS_AT_ONCE: Final = 50  # objects that are compared, copied, declared or encoded between two turns of the loop
EMPTIED_AT_ONCE: Final = 1000  # objects that are freed between two turns of the loop

T = TypeVar("T")


async def finished(steps: Generator[None, None, T]) -> T:
    """Run the steps of some work, each of one object, in slices, and return its result."""
    while True:
        for _ in range(STEPS_AT_ONCE):
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
        await asyncio.sleep(0)


async def emptied(*lists: list[Any]) -> None:
    """Empty unused lists in slices: freeing a million objects takes longer than a turn may."""
    for rows in lists:
        while rows:
            del rows[-EMPTIED_AT_ONCE:]
            await asyncio.sleep(0)
