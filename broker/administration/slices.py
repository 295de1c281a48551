"""Slices of long work: the loop serves clients between them, so that a client waits for one slice and not for all.

Only one caller of `in_slices` runs a slice in each turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable
from itertools import islice
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary  # of event loops

STEPS_AT_ONCE: Final = 50  # steps of a generator between two turns of the loop
OBJECTS_AT_ONCE: Final = 200  # objects read between two turns of the loop: less than a millisecond
CLEARED_AT_ONCE: Final = 1000  # objects freed between two turns of the loop

T = TypeVar("T")

_turns: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]] = WeakKeyDictionary()


async def pause() -> None:
    """Let the loop do other work, and continue after the callers that paused earlier."""
    loop = asyncio.get_running_loop()
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = asyncio.Lock()
    async with turn:
        await asyncio.sleep(0)


async def in_slices(objects: Iterable[T], at_once: int = OBJECTS_AT_ONCE) -> AsyncIterator[T]:
    """Yield objects, and pause after each slice."""
    rest = iter(objects)
    while piece := list(islice(rest, at_once)):
        for one in piece:
            yield one
        await pause()


async def run_in_slices(steps: Generator[None, None, T]) -> T:
    """Run a generator in slices of its steps, and return its result."""
    while True:
        for _ in range(STEPS_AT_ONCE):
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
        await asyncio.sleep(0)


async def clear_in_slices(*lists: list[Any]) -> None:
    """Empty unused lists in slices, because freeing a million objects takes too long for one turn."""
    for rows in lists:
        while rows:
            del rows[-CLEARED_AT_ONCE:]
            await asyncio.sleep(0)
