"""The clock watch: keep the difference between the broker's clock and the system clock in the data folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from broker.delivery.clock import SteadyClock
from broker.delivery.turn import Turn
from broker.event_log import get_logger
from broker.store.clock_file import ClockFile, ClockState
from broker.store.damage import StoreFailed

_log = get_logger()

STEP_MS: Final = 1000  # smaller differences are not corrections: clocks are adjusted all the time
SEEN_INTERVAL_S: Final = 60  # between two writes of the time, while records are appended


class ClockWatch:
    """Keep the file `clock` up to date. Clocks other than SteadyClock (in tests) do not have a file.

    Invariant: a correction of the system clock is on disk about a second later. A start resumes at most a minute before
        the last record of the last run.
    """

    def __init__(self, file: ClockFile, clock: Callable[[], float]) -> None:
        self._file = file
        self._clock = clock if isinstance(clock, SteadyClock) else None
        self._ahead_ms = 0  # on disk, or about to be
        self._due = False
        self._positions: list[int] = []
        self._written_s = 0.0
        self._writing: asyncio.Future[None] | None = None
        self._failed = False

    def resume(self) -> int:
        """Resume the clock of the last run and return how far it is ahead of the system clock, in ms. *Blocking.*

        Raises: NewerFormat; CorruptFile; StoreFailed.
        """
        if self._clock is None:
            return 0
        kept = self._file.read()
        self._clock.resume(*kept)
        self._ahead_ms = self._clock.ahead_ms
        if abs(by_ms := self._ahead_ms - kept.ahead_ms) >= STEP_MS:
            _log.warning("clock.resumed", by_s=by_ms / 1000, reason="the system's clock is behind that of the last run")
            self._due = True
            self._write(self._state())
        return self._ahead_ms

    def start(self, turn: Turn, positions: Callable[[], list[int]]) -> None:
        """Start to pass the clock's lead to the turn. `positions` returns the end of each vhost's log."""
        self._turn = turn
        self._positions_now = positions
        self._written_s = asyncio.get_running_loop().time()
        turn.set_ahead(self._ahead_ms)

    def tick(self) -> None:
        """Write corrections of the system clock and, after new records, the time once a minute; called every second."""
        if self._clock is None or (self._writing is not None and not self._writing.done()):
            return
        state = self._state()
        self._turn.set_ahead(state.ahead_ms)
        loop = asyncio.get_running_loop()
        if abs(by_ms := self._ahead_ms - state.ahead_ms) >= STEP_MS:
            _log.warning("clock.corrected", by_s=by_ms / 1000)
            self._ahead_ms = state.ahead_ms
            self._due = True
        elif loop.time() - self._written_s >= SEEN_INTERVAL_S and self._has_moved():
            self._due = True
        if self._due:
            self._written_s = loop.time()
            self._writing = loop.run_in_executor(None, self._write, state)

    async def stop(self) -> None:
        """Write the time of a clean stop; the file is not written again."""
        if self._clock is not None:
            if self._writing is not None:
                await self._writing
            state, self._clock = self._state(), None
            await asyncio.get_running_loop().run_in_executor(None, self._write, state)

    def _state(self) -> ClockState:
        assert self._clock is not None
        return ClockState(self._clock.ahead_ms, int(self._clock() * 1000))

    def _has_moved(self) -> bool:
        positions = self._positions_now()
        moved = positions != self._positions
        self._positions = positions
        return moved

    def _write(self, state: ClockState) -> None:
        """Write the file. *Blocking.* A failure is logged once, and the next tick tries again."""
        try:
            self._file.write(state)
            self._failed = self._due = False
        except StoreFailed as error:
            if not self._failed:
                _log.error("clock.not_written", reason=str(error))
            self._failed = True
