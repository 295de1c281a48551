"""Sliced work: what one method or the end of one client causes for millions of messages takes a slice of each turn.

Other clients are served between the slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from broker.core.deadlines import Clock, Deadlines

MESSAGES_PER_UNIT: Final = 32  # messages that are settled and released from memory in ten microseconds


class SlicedWork:
    """Takes the steps of some work, in each loop turn as many as the turn's share allows.

    Shapes: each step yields its cost in units of the turn's share. ``_running`` has the steps that are left by number,
        and what follows the last one.
    """

    def __init__(self, clock: Clock, deadlines: Deadlines) -> None:
        self._clock = clock
        self._deadlines = deadlines
        self._running: dict[int, tuple[Iterator[int], Callable[[], None] | None]] = {}
        self._last = 0

    def run(self, steps: Iterator[int], then: Callable[[], None] | None = None) -> None:
        """Begin some work: small work is over when this returns. Call `then` after its last step."""
        self._last = number = self._last + 1
        self._running[number] = (steps, then)
        self._continue(number)

    def finish(self) -> Iterator[None]:
        """Take all steps that are left, because the broker stops, and yield after each."""
        while self._running:
            number, (steps, _) = next(iter(self._running.items()))
            self._deadlines.cancel((self, number))
            for _units in steps:
                yield
            self._end(number)

    def _continue(self, number: int) -> None:
        """Take steps until the share of this turn is used up."""
        deadlines = self._deadlines
        for units in self._running[number][0]:
            deadlines.spend(units)
            if deadlines.left <= 0:
                deadlines.set((self, number), self._clock.now_ms, partial(self._continue, number))
                return
        self._end(number)

    def _end(self, number: int) -> None:
        _, then = self._running.pop(number)
        if then is not None:
            then()
