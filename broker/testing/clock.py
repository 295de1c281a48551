"""A clock that stands still until the test moves it: what expires, is delayed or goes unused waits for `advance`."""

from __future__ import annotations

from typing import Final, Protocol

__all__ = ["Timed", "VirtualClock"]

START_S: Final = 1_700_000_000
NUDGE_MS: Final = 0.01  # a whole millisecond stays one when it is divided by 1000 and multiplied again


class Timed(Protocol):
    """Something that goes by the clock."""

    def next_due_ms(self) -> int | None:
        """Return when there is something to do next, None for never."""

    def do_due(self) -> None:
        """Do what has become due."""


class VirtualClock:
    """Tells the time of the brokers under test. Units: seconds since 1970, to the millisecond."""

    def __init__(self, start_s: float = START_S) -> None:
        self._now_ms = round(start_s * 1000)
        self._timed: list[Timed] = []

    def __call__(self) -> float:
        """Return the time now."""
        return (self._now_ms + NUDGE_MS) / 1000

    def attach(self, timed: Timed) -> None:
        """Has a broker go by this clock."""
        self._timed.append(timed)

    def detach(self, timed: Timed) -> None:
        """Forget a broker."""
        self._timed.remove(timed)

    def advance(self, seconds: float) -> None:
        """Move the clock on, from one thing that becomes due to the next; all have happened when this returns.

        So a message that expires into a queue where it expires again has done both at their times. One that has to be
        read back from disk first expires a moment later: `Broker.idle` waits for it.
        Raises: ValueError for a negative time: the broker's clock never goes back.
        """
        if seconds < 0:
            raise ValueError(f"a clock does not go back: {seconds} s")
        end_ms = self._now_ms + round(seconds * 1000)
        self._move(self._now_ms)  # so that whatever counts from now has begun to
        while (next_ms := self._next_due_ms()) is not None and next_ms <= end_ms:
            self._move(max(next_ms, self._now_ms))
            if self._next_due_ms() == next_ms:  # it cannot be done now
                break
        self._move(end_ms)

    def _next_due_ms(self) -> int | None:
        return min((due for timed in self._timed if (due := timed.next_due_ms()) is not None), default=None)

    def _move(self, now_ms: int) -> None:
        self._now_ms = now_ms
        for timed in list(self._timed):
            timed.do_due()
