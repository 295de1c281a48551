"""Long work of the API, in pieces: one in each turn of the loop, however many callers ask for long answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import Final, TypeVar
from weakref import WeakKeyDictionary  # of event loops

OBJECTS_AT_ONCE: Final = 200  # objects handled between two turns of the loop: less than a millisecond

T = TypeVar("T")


_turns: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]] = WeakKeyDictionary()


async def pause() -> None:
    """Let the loop do other work, and continue at this caller's turn."""
    loop = asyncio.get_running_loop()
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = asyncio.Lock()
    async with turn:
        await asyncio.sleep(0)


async def in_pieces(objects: Iterable[T], at_once: int = OBJECTS_AT_ONCE) -> AsyncIterator[T]:
    """Yield objects, and pause after each piece."""
    rest = iter(objects)
    while piece := list(islice(rest, at_once)):
        for one in piece:
            yield one
        await pause()
