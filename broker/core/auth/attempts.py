"""Failed logins by network: a network that fails often waits longer for each verdict."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

__all__ = ["Attempts"]

FREE_FAILURES: Final = 10  # failures without a delay; one is forgotten each second
DELAY_S: Final = 1.0
WAITING_MAX: Final = 32  # waiting logins of one network; more are refused without a check
NETWORKS_MAX: Final = 4096


class Attempts:
    """Counts failures, of which one is forgotten each second.

    The delay applies to right passwords too, or the speed of the answer would tell a right guess from a wrong one.
    Cost: bounded; the networks that failed longest ago are forgotten first.
    """

    __slots__ = ("_failures", "_now_s", "_waiting")

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._waiting: dict[str, int] = {}

    def delay_s(self, network: str) -> float:
        """Return how long a verdict for this network waits: 0 while it fails rarely."""
        return DELAY_S if self._level(network) > FREE_FAILURES else 0.0

    def failed(self, network: str) -> None:
        """Count a failure."""
        level = self._level(network) + 1
        self._failures[network] = (min(level, 2.0 * FREE_FAILURES), self._now_s())
        self._failures.move_to_end(network)
        if len(self._failures) > NETWORKS_MAX:
            self._failures.popitem(last=False)

    def begin(self, network: str) -> bool:
        """Count a login whose verdict comes later; return False when too many of this network wait already."""
        waiting = self._waiting.get(network, 0)
        if waiting >= WAITING_MAX and self.delay_s(network):
            return False
        self._waiting[network] = waiting + 1
        return True

    def end(self, network: str) -> None:
        """Count the verdict."""
        waiting = self._waiting[network] - 1
        if waiting:
            self._waiting[network] = waiting
        else:
            del self._waiting[network]

    def _level(self, network: str) -> float:
        level, at_s = self._failures.get(network, (0.0, 0.0))
        return max(0.0, level - (self._now_s() - at_s)) if level else 0.0
