"""The cost of the methods that one connection may send per turn of the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.deadlines import Clock, Deadlines

if TYPE_CHECKING:
    from broker.amqp.connection import Connection

__all__ = ["BUDGET_UNITS", "MethodBudget"]

BUDGET_UNITS: Final = 200  # of about ten microseconds: two milliseconds of one connection


class MethodBudget:
    """Holds a connection until the next turn of the loop, each time its methods have used up the budget.

    The bytes that are read in a turn bound the cost of publishes. A method of fifty bytes may cost as much as many
    publishes, and one read brings thousands of them: this bounds their cost.
    Units: about ten microseconds.
    """

    __slots__ = ("_clock", "_connection", "_deadlines", "_left")

    def __init__(self, connection: Connection, clock: Clock, deadlines: Deadlines) -> None:
        self._connection = connection
        self._clock = clock
        self._deadlines = deadlines
        self._left = BUDGET_UNITS

    def spend(self, units: int) -> None:
        """Count the cost of a method; when the budget is used up, hold the connection until the next turn."""
        self._left -= units
        if self._left <= 0 and not self._connection.held:
            self._connection.hold()
            self._deadlines.set(self, self._clock.now_ms, self._renew)

    def _renew(self) -> None:
        self._left = BUDGET_UNITS
        self._connection.release()
