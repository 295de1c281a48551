"""The functions that PostgreSQL fails to carry out at the moment: it answers, and its answer is an error of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from broker.cluster.errors import DatabaseFails, StatementRefused
from broker.event_log import get_logger

__all__ = ["FailingCalls"]

_log = get_logger()

FRESH_S: Final = 3.0  # a function that fails is called again within a second, as long as somebody needs it


class _Failure(NamedTuple):
    reason: str
    at_s: float
    is_certain: bool


class FailingCalls:
    """Logs what fails, once for each reason, and knows until when it failed.

    Units: ``count`` is how many calls have failed.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` never goes back."""
        self._clock = clock
        self._failures: dict[str, _Failure] = {}
        self.count = 0

    def failed(self, function: str, error: DatabaseFails | StatementRefused) -> None:
        """Note that a call of a function failed."""
        self.count += 1
        failure = _Failure(str(error), self._clock(), isinstance(error, StatementRefused))
        known = self._failures.get(function)
        if known is None or known != failure._replace(at_s=known.at_s) or failure.at_s - known.at_s > FRESH_S:
            event = "call.refused" if failure.is_certain else "database.failing"
            _log.error(event, function=function, reason=failure.reason)
        self._failures[function] = failure

    def succeeded(self, function: str) -> None:
        """Note that a call of a function was carried out. Cost: a look whether anything fails."""
        if self._failures:
            self._failures.pop(function, None)

    @property
    def reason(self) -> str:
        """What PostgreSQL said last of what it cannot carry out now; empty if it can, or refuses single calls only."""
        now_s = self._clock()
        fresh = [one for one in self._failures.values() if now_s - one.at_s <= FRESH_S and not one.is_certain]
        return max(fresh, key=lambda one: one.at_s).reason if fresh else ""
