"""Work that waits until PostgreSQL answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from broker.cluster.errors import StatementRefused, Unreachable

__all__ = ["patiently"]

PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0

T = TypeVar("T")


async def patiently(work: Callable[[], Awaitable[T]], *, gives_up: bool = False) -> T:
    """Return what the work returns, and try it again while PostgreSQL cannot be reached, or fails.

    The work must be such that to do it twice does no harm.
    Raises: Fenced; StatementRefused, if it `gives_up` what would be refused for ever.
    """
    pause_s = PAUSE_S
    while True:
        try:
            return await work()
        except Unreachable as error:
            if gives_up and isinstance(error, StatementRefused):
                raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
