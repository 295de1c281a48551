"""One loop turn: every vhost's engine works, then each touched connection is written once.

Whatever happens in a read callback only marks work; the work is done here, so one read ends in one write per
connection touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from broker.delivery.engine import Engine

__all__ = ["Outlet", "Turn"]


def _nothing() -> None:
    """Follows a turn when nobody wants to."""


class Outlet(Protocol):
    """A connection's socket as the turn sees it."""

    def flush(self) -> None:
        """Writes what the connection has to say, in one call."""

    def resume(self) -> None:
        """Goes on reading after a turn's budget was used up."""


class Turn:
    """Runs at most once per loop iteration, and only when something asked for it.

    Invariant: ``scheduled`` is set from when a turn was asked for until it runs.
    Units: ``now_ms`` is the wall clock when the present turn was asked for, which is as exact as a record's timestamp
        needs.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, wall_clock_s: Callable[[], float], fail: Callable[[BaseException], None]
    ) -> None:
        self._loop = loop
        self._wall_clock_s = wall_clock_s
        self._fail = fail
        self.scheduled = False
        self._touched: list[Outlet] = []
        self._paused: list[Outlet] = []
        self.engines: list[Engine] = []
        self.after: Callable[[], None] = _nothing
        self.dead = False  # the broker has failed: nothing is delivered, written or confirmed any more
        self.now_ms = int(wall_clock_s() * 1000)
        self.count = 0

    def fail(self, error: BaseException) -> None:
        """Ends the broker."""
        self._fail(error)

    def schedule(self) -> None:
        """Has a turn run before the loop waits again."""
        if not self.scheduled:
            self.scheduled = True
            self.read_clock()
            self._loop.call_soon(self.run)

    def read_clock(self) -> None:
        """Brings ``now_ms`` up to date."""
        self.now_ms = int(self._wall_clock_s() * 1000)

    def touch(self, outlet: Outlet) -> None:
        """Has an outlet flushed at the end of the turn."""
        self._touched.append(outlet)
        self.schedule()

    def pause(self, outlet: Outlet) -> None:
        """Has an outlet resumed at the end of the turn: it used up its share of reading."""
        self._paused.append(outlet)
        self.schedule()

    def run(self) -> None:
        """Does everything that was asked for since the last turn."""
        self.scheduled = False
        if self.dead:
            return
        self.count += 1
        try:
            for engine in self.engines:
                if engine.due or engine.stirred:
                    engine.turn()
            self.after()
            touched, self._touched = self._touched, []
            for outlet in touched:
                outlet.flush()
            paused, self._paused = self._paused, []
            for outlet in paused:
                outlet.resume()
        except Exception as error:  # noqa: BLE001  # a defect or a lost store: nothing may be confirmed after it
            self._fail(error)
