"""Sliced work: if one method or the end of a connection affects millions of messages, the work is divided into slices,
one for each turn of the loop, so that other clients are served in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from broker.core.deadlines import Deadlines

MESSAGES_PER_UNIT: Final = 32  # messages that are settled and released from memory for one unit of the turn's share


class SlicedWork:
    """Run work as a sequence of steps, in each turn of the loop as many as the turn's share allows. Shapes: each step
    yields its cost in units. ``_running`` maps numbers to the remaining steps and the function to call after the last.
    """

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._running: dict[int, tuple[Iterator[int], Callable[[], None] | None]] = {}
        self._last = 0
        self._line: deque[Iterator[int]] = deque()

    def run(self, steps: Iterator[int], then: Callable[[], None] | None = None) -> None:
        """Start work, and call `then` after its last step. Small work is complete when this returns."""
        self._last = number = self._last + 1
        self._running[number] = (steps, then)
        self._continue(number)

    def run_in_line(self, steps: Iterator[int]) -> None:
        """Start work that waits for all earlier work of this method."""
        self._line.append(steps)
        if len(self._line) == 1:
            self.run(self._run_line())

    def finish(self) -> Iterator[None]:
        """Run all remaining steps, because the vhost is ending, and yield after each."""
        while self._running:
            number, (steps, _) = next(iter(self._running.items()))
            self._deadlines.cancel((self, number))
            for _units in steps:
                yield
            self._end(number)

    def _run_line(self) -> Iterator[int]:
        while self._line:
            try:
                yield from self._line[0]
            finally:
                self._line.popleft()

    def _continue(self, number: int) -> None:
        """Run steps until the share of this turn is used up."""
        deadlines = self._deadlines
        for units in self._running[number][0]:
            deadlines.spend(units)
            if deadlines.units_left <= 0:
                deadlines.next_turn((self, number), partial(self._continue, number))
                return
        self._end(number)

    def _end(self, number: int) -> None:
        _, then = self._running.pop(number)
        if then is not None:
            then()


def free(items: list[Any]) -> Iterator[int]:
    """Free the items of a list in steps, which takes as long as for messages; yield the cost of each step in units."""
    while items:
        del items[-MESSAGES_PER_UNIT:]
        yield 1
