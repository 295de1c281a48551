"""Wait for postponed topology changes: in a cluster, every node applies a change before it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from broker.administration.slices import in_slices
from broker.amqp.errors import ChannelError, NodeLost
from broker.core.postponed import NODE_LOST, Postponed
from broker.core.queue.queue import Queue

COUNT_TIMEOUT_S = 2.0
COUNTED_AT_ONCE = 1000  # queues counted between two turns of the loop

T = TypeVar("T")


async def decided(act: Callable[[], T]) -> T:
    """Call `act` until it is not postponed, and return its result. Raises: what `act` and `answers` raise."""
    while True:
        try:
            return act()
        except Postponed as postponed:
            await answers([postponed])


async def count_all(queues: Collection[Queue]) -> None:
    """Count the messages of queues on all nodes. If that fails or takes too long, the last counts remain."""
    asked: dict[Queue, Postponed] = {}
    async for queue in in_slices(queues, COUNTED_AT_ONCE):
        try:
            queue.prepare_for("declare", None)
        except Postponed as postponed:
            asked[queue] = postponed
    try:
        async with asyncio.timeout(COUNT_TIMEOUT_S):
            await answers(asked.values())
    except (TimeoutError, NodeLost, ChannelError):
        return
    for queue in asked:
        with suppress(Postponed):  # a method of a client may have used the answer
            queue.prepare_for("declare", None)


async def answers(postponed: Iterable[Postponed]) -> None:
    """Request all postponed decisions at once, and wait for the answers.

    Raises: ChannelError 406 if one is refused; NodeLost.
    """
    loop = asyncio.get_running_loop()
    waiting, asked = [], list(postponed)
    for one in asked:
        answered = loop.create_future()
        one.begin(partial(_note, answered))
        waiting.append(answered)
    for answered in waiting:
        await answered
    if any(one.refusal == NODE_LOST for one in asked):
        raise NodeLost(NODE_LOST)
    for one in asked:
        one.check()


def _note(answered: asyncio.Future[None]) -> None:
    if not answered.done():  # its waiter may have been cancelled
        answered.set_result(None)
