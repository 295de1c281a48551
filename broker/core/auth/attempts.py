"""Logins counted by network and user name when they begin: more than the rate wait, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.amqp.wire import SHORT_STRING_MAX_BYTES

__all__ = ["Attempts"]

AT_ONCE: Final = 10  # logins of one name and network that wait for nothing; one is forgotten each second
WAIT_MAX_S: Final = 5.0  # a login that would wait for longer is refused; handshakes take ten seconds at most
COUNTED_MAX: Final = 16_384  # networks and names


class Attempts:
    """Counts logins that are not known to be right, of which one is forgotten each second.

    A login that begins takes a moment in the future, and the moments of one network and name are a second apart. What a
    login waits thus depends on those before it, never on its own password.
    Shapes: `_until` has the time at which all logins of a network and name are forgotten.
    Cost: bounded; beyond that the half that is forgotten first is forgotten now, which resets nobody who guesses a lot.
    """

    __slots__ = ("_now_s", "_until")

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._until: dict[tuple[str, str], float] = {}

    def wait_s(self, network: str, name: str) -> float:
        """Return how long a login that began now would wait."""
        return max(0.0, self._level(network, name) + 1 - AT_ONCE)

    def begin(self, network: str, name: str) -> float | None:
        """Count a login and return how long it waits; None when it is refused, and then it does not count."""
        wait_s = self.wait_s(network, name)
        if wait_s > WAIT_MAX_S:
            return None
        if len(self._until) >= COUNTED_MAX:
            kept = sorted(self._until.items(), key=_when)[COUNTED_MAX // 2 :]
            self._until = dict(kept)
        self._until[key_of(network, name)] = self._now_s() + self._level(network, name) + 1
        return wait_s

    def uncount(self, network: str, name: str) -> None:
        """Forget one login that began: it was right, or was not judged."""
        key = key_of(network, name)
        left = self._level(network, name) - 1
        if left > 0:
            self._until[key] -= 1
        else:
            self._until.pop(key, None)

    def _level(self, network: str, name: str) -> float:
        return max(0.0, self._until.get(key_of(network, name), 0.0) - self._now_s())


def key_of(network: str, name: str) -> tuple[str, str]:
    """Return what logins are counted by: of a name no more than the longest that a user can have."""
    return network, name[: SHORT_STRING_MAX_BYTES + 1]


def _when(counted: tuple[tuple[str, str], float]) -> float:
    return counted[1]
