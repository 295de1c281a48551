"""A clock that moves only when a test calls `advance`. Expirations, delays and deletions of unused objects use it."""

from __future__ import annotations

from typing import Final, Protocol

START_S: Final = 1_700_000_000
NUDGE_MS: Final = 0.01  # so that whole milliseconds survive the conversion to seconds and back


class Timed(Protocol):
    """An object whose actions depend on the clock."""

    def next_due_ms(self) -> int | None:
        """Return the time of the next action, in milliseconds since 1970, or None if there is none."""

    def run_due(self) -> None:
        """Run the actions that are due."""


class VirtualClock:
    """The clock of the brokers under test. Units: seconds since 1970, to the millisecond."""

    def __init__(self, start_s: float = START_S) -> None:
        self._now_ms = round(start_s * 1000)
        self._timed: list[Timed] = []

    def __call__(self) -> float:
        return (self._now_ms + NUDGE_MS) / 1000

    def attach(self, timed: Timed) -> None:
        """Add a broker that uses this clock."""
        self._timed.append(timed)

    def detach(self, timed: Timed) -> None:
        self._timed.remove(timed)

    def advance(self, seconds: float) -> None:
        """Advance the clock, and run each due action at its own time before this method returns.

        So a message can expire, be dead-lettered and expire again in one call. A message that must first be read from
        disk expires a little later; `Broker.idle` waits for it. Raises: ValueError for a negative time.
        """
        if seconds < 0:
            raise ValueError(f"a clock does not go back: {seconds} s")
        end_ms = self._now_ms + round(seconds * 1000)
        self._move(self._now_ms)  # start the timers that begin now
        while (next_ms := self._next_due_ms()) is not None and next_ms <= end_ms:
            self._move(max(next_ms, self._now_ms))
            if self._next_due_ms() == next_ms:  # the action cannot run now
                break
        self._move(end_ms)

    def _next_due_ms(self) -> int | None:
        return min((due for timed in self._timed if (due := timed.next_due_ms()) is not None), default=None)

    def _move(self, now_ms: int) -> None:
        self._now_ms = now_ms
        for timed in list(self._timed):
            timed.run_due()
