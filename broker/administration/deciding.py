"""Waits for what a change of the topology is postponed for: in a cluster every node has to apply it first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from broker.core.postponed import Postponed

__all__ = ["answers", "decided"]

T = TypeVar("T")


async def decided(act: Callable[[], T]) -> T:
    """Return the result of an act, which runs again after each postponement."""
    while True:
        try:
            return act()
        except Postponed as postponed:
            await answers([postponed])


async def answers(postponed: Iterable[Postponed]) -> None:
    """Return when the answers to all postponements are there; they are asked for at once."""
    loop = asyncio.get_running_loop()
    waiting = []
    for one in postponed:
        answered = loop.create_future()
        one.begin(partial(_note, answered))
        waiting.append(answered)
    for answered in waiting:
        await answered


def _note(answered: asyncio.Future[None]) -> None:
    if not answered.done():  # its waiter may have been cancelled
        answered.set_result(None)
