"""What a connection may ask for until everybody else has had their turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.amqp.connection import Connection
    from broker.core.deadlines import Clock, Deadlines

__all__ = ["BUDGET_UNITS", "MethodBudget"]

BUDGET_UNITS: Final = 200  # of about ten microseconds: two milliseconds of one connection


class MethodBudget:
    """Makes a connection wait for the next turn of the loop, each time it has asked for so much.

    The bytes that are read in a turn bound what publishes cost. A method of fifty bytes may cost as much as many
    publishes, and thousands of them come in one read: this bounds those.
    Units: about ten microseconds.
    """

    __slots__ = ("_clock", "_connection", "_deadlines", "_left")

    def __init__(self, connection: Connection, clock: Clock, deadlines: Deadlines) -> None:
        self._connection = connection
        self._clock = clock
        self._deadlines = deadlines
        self._left = BUDGET_UNITS

    def spend(self, units: int) -> None:
        """Count what a method costs; behind the last one the connection is held until the next turn."""
        self._left -= units
        if self._left <= 0 and not self._connection.held:
            self._connection.hold()
            self._deadlines.set(self, self._clock.now_ms, self._renew)

    def _renew(self) -> None:
        self._left = BUDGET_UNITS
        self._connection.release()
