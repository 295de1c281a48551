"""Watches the system's clock and keeps in the data folder how far the broker's differs from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.delivery.clock import SteadyClock
from broker.event_log import get_logger
from broker.store.clock_file import ClockFile, ClockState
from broker.store.damage import StoreFailed

if TYPE_CHECKING:
    from broker.delivery.turn import Turn

__all__ = ["ClockWatch"]

_log = get_logger()

STEP_MS: Final = 1000  # what is less is no correction: clocks are adjusted all the time
SEEN_INTERVAL_S: Final = 60  # while messages come, the time is written down so often


class ClockWatch:
    """Keeps the file `clock` true. A clock that a test moves is not watched.

    Invariant: a correction is on disk a second after it was made, and its write; a start goes on no further back than a
        minute before the last record of the last run.
    """

    def __init__(self, file: ClockFile, clock: Callable[[], float]) -> None:
        self._file = file
        self._clock = clock if isinstance(clock, SteadyClock) else None
        self._ahead_ms = 0  # as it is on disk, or about to be
        self._due = False
        self._positions: list[int] = []
        self._written_s = 0.0
        self._writing: asyncio.Future[None] | None = None
        self._failed = False

    def resume(self) -> int:
        """Set the clock to go on from the last run and return how far it is ahead of the system's, in ms. *Blocking.*

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
        """Tell the turn how far the clock is ahead from now on. `positions` returns that of each vhost's log."""
        self._turn = turn
        self._positions_now = positions
        self._written_s = asyncio.get_running_loop().time()
        turn.set_ahead(self._ahead_ms)

    def tick(self) -> None:
        """Note a correction of the system's clock, and now and then the time; called once a second."""
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
        """Write the time of a clean stop, and nothing behind it."""
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
        """Write the file. *Blocking.* A disk that does not take it is told of once, and asked again."""
        try:
            self._file.write(state)
            self._failed = self._due = False
        except StoreFailed as error:
            if not self._failed:
                _log.error("clock.not_written", reason=str(error))
            self._failed = True
