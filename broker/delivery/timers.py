"""The timers: a few periodic calls on the loop's clock, none per message or connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timers:
    """Call functions periodically until closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fail: Callable[[BaseException], None]) -> None:
        self._loop = loop
        self._fail = fail
        self._handles: dict[int, asyncio.TimerHandle] = {}

    def every(self, interval_s: Callable[[], float], *actions: Callable[[], None]) -> None:
        """Call `actions` every `interval_s()` seconds, first after one interval; an error ends the broker.
        Cost: one wake-up of the process per interval, so actions with the same interval belong in one call.
        """
        key = len(self._handles)

        def again() -> None:
            try:
                for action in actions:
                    action()
            except Exception as error:  # noqa: BLE001 - whatever it is, it ends the broker
                self._fail(error)
                return
            self._handles[key] = self._loop.call_later(interval_s(), again)

        self._handles[key] = self._loop.call_later(interval_s(), again)

    def close(self) -> None:
        """Stop all calls."""
        for handle in self._handles.values():
            handle.cancel()
