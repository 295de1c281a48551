"""A wake-up: set when there is work for a task that waits for it."""

from __future__ import annotations

import asyncio

__all__ = ["WakeUp"]


class WakeUp:
    """Wakes one task. Wake-ups that come before the task waits again count once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def is_set(self) -> bool:
        """Whether the task has been woken, and has not seen it."""
        return self._event.is_set()

    def set(self) -> None:
        """Wake the task."""
        self._event.set()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Return at the next wake-up, or when the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            pass
        self._event.clear()
