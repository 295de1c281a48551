"""Long work of the API, in pieces: one in each turn of the loop, however many callers ask for long answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import Final, TypeVar
from weakref import WeakKeyDictionary  # of event loops

OBJECTS_AT_ONCE: Final = 200  # objects handled between two turns of the loop: less than a millisecond

T = TypeVar("T")


class Turns:
    """Resumes paused callers in order, one in each turn of the loop."""

    __slots__ = ("__weakref__", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Return in a turn of the loop that is the caller's alone."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._resume, loop)
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _resume(self, loop: asyncio.AbstractEventLoop) -> None:
        """Resume the first waiter, and the next one in the next turn."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.cancelled():
                turn.set_result(None)
                break
        if self._waiting:
            loop.call_soon(self._resume, loop)


_turns: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Turns]] = WeakKeyDictionary()


async def pause() -> None:
    """Let the loop do other work, and continue at this caller's turn."""
    loop = asyncio.get_running_loop()
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = Turns()
    await turns.wait()


async def in_pieces(objects: Iterable[T], at_once: int = OBJECTS_AT_ONCE) -> AsyncIterator[T]:
    """Yield objects, and pause after each piece."""
    rest = iter(objects)
    while piece := list(islice(rest, at_once)):
        for one in piece:
            yield one
        await pause()
