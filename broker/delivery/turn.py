"""One loop turn: every vhost's engine works, then each touched connection is written once.

Whatever happens in a read callback only marks work; the work is done here, so one read ends in one write per
connection touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["Outlet", "Turn", "TurnEngine"]

SHARE_BYTES: Final = 128 << 10
PIECE_MIN_BYTES: Final = 16 << 10  # less of one connection at a time would cost more than it evens out


def _no_backlog() -> bool:
    """Look at nothing."""
    return False


class Outlet(Protocol):
    """A connection's socket as the turn sees it."""

    def flush(self) -> None:
        """Write what the connection has to say, in one call."""

    def resume(self) -> None:
        """Go on reading: there is a share of the turn for it."""


class TurnEngine(Protocol):
    """A vhost's engine as the turn sees it."""

    due: bool

    @property
    def stirred(self) -> bool:
        """Whether there is work for which nobody scheduled a turn: settlements, records without a waiter, drops."""

    def turn(self) -> None:
        """Do the work of the vhost that is due."""


class Turn:
    """Runs at most once per loop iteration, and only when something asked for it.

    Invariant: ``scheduled`` is set from when a turn was asked for until it runs. Who is touched while the engines work
        is flushed by the same turn, and asks for no other.
    Units: ``now_ms`` is the broker's clock when the present turn was asked for, which is as exact as a record's
        timestamp needs; ``ahead_ms`` is how far that is ahead of the system's clock. ``left_bytes`` is what is left of
        the share of input that is handled between two turns, of all connections together; those that want more wait,
        and are resumed in the order in which they came.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wall_clock_s: Callable[[], float],
        fail: Callable[[BaseException], None],
        share_bytes: int = SHARE_BYTES,
    ) -> None:
        self._loop = loop
        self._share_bytes = self._piece_bytes = share_bytes
        self._short = False
        self.left_bytes = share_bytes
        self._wall_clock_s = wall_clock_s
        self._fail = fail
        self.scheduled = False
        self._flushes = False  # a turn has begun, and will flush whoever is touched
        self._touched: list[Outlet] = []
        self._paused: list[Outlet] = []
        self.engines: list[TurnEngine] = []
        self._backlog = False
        self._check_backlog: Callable[[], bool] = _no_backlog
        self.dead = False  # the broker has failed: nothing is delivered, written or confirmed any more
        self.now_ms = int(wall_clock_s() * 1000)
        self.ahead_ms = 0
        self.count = 0

    def fail(self, error: BaseException) -> None:
        """End the broker."""
        self._fail(error)

    def schedule(self) -> None:
        """Schedule a turn before the loop waits again."""
        if not self.scheduled:
            self.scheduled = True
            self.now_ms = int(self._wall_clock_s() * 1000)
            self._loop.call_soon(self.run)

    def read_clock(self) -> None:
        """Bring ``now_ms`` up to date."""
        self.now_ms = int(self._wall_clock_s() * 1000)

    def set_ahead(self, ahead_ms: int) -> None:
        """Note how far the broker's clock is ahead of the system's."""
        self.ahead_ms = ahead_ms

    def check_backlog_by(self, check: Callable[[], bool]) -> None:
        """Call `check` in the turns that leave records unwritten, and in each turn after one for which it is true."""
        self._check_backlog = check

    def stop(self) -> None:
        """Run no further turn: the broker has failed."""
        self.dead = True

    def touch(self, outlet: Outlet) -> None:
        """Has an outlet flushed at the end of the turn."""
        self._touched.append(outlet)
        if not self.scheduled and not self._flushes:
            self.schedule()

    def waker(self, outlet: Outlet) -> Callable[[object], None]:
        """Return what has an outlet flushed, whoever says so."""
        touched = self._touched

        def wake(_source: object) -> None:
            """Flush the outlet in the next turn."""
            touched.append(outlet)
            if not self.scheduled and not self._flushes:
                self.schedule()

        return wake

    def note_backlog(self) -> None:
        """Have the records that wait for the disk looked at after this turn."""
        self._backlog = True

    def shorten(self) -> None:
        """Halve the share of input behind this turn, which had much else to do: the next one may have, too."""
        self._short = True

    def piece_bytes(self) -> int:
        """Return how much of one connection's input may be handled now."""
        return max(0, min(self.left_bytes, self._piece_bytes))

    def pause(self, outlet: Outlet) -> None:
        """Has an outlet resumed when a turn has a share for it."""
        self._paused.append(outlet)
        self.schedule()

    def run(self) -> None:
        """Let the engines with work do it, then write each connection that has output once."""
        self.scheduled = False
        if self.dead:
            return
        self.count += 1
        self._flushes = True
        try:
            for engine in self.engines:
                if engine.due or engine.stirred:
                    engine.turn()
            if self._backlog:
                self._backlog = self._check_backlog()
            self._flushes = False
            touched = self._touched[:]
            self._touched.clear()
            for outlet in touched:
                outlet.flush()
            self.left_bytes = self._share_bytes // 2 if self._short else self._share_bytes
            self._short = False
            if self._paused:
                self._resume()
        except Exception as error:  # noqa: BLE001  # a defect or a lost store: nothing may be confirmed after it
            self._fail(error)

    def _resume(self) -> None:
        """Resume those that wait for a share, as far as this one goes; the others stand first for the next."""
        paused, self._paused = self._paused, []
        self._piece_bytes = max(PIECE_MIN_BYTES, self._share_bytes // len(paused))
        for place, outlet in enumerate(paused):
            if self.left_bytes <= 0:
                self._paused[:0] = paused[place:]
                break
            outlet.resume()
        if self._paused:
            self.schedule()
        else:
            self._piece_bytes = self._share_bytes
