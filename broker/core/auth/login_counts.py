"""Logins counted by protocol, network and user, and the refusal of too many."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from broker.amqp.wire import SHORT_STRING_MAX_BYTES

AT_ONCE: Final = 10  # logins of one name and network that need not wait; one is forgotten each second
WAIT_MAX_S: Final = 5.0  # a login that would wait for longer is refused; handshakes take ten seconds at most
COUNTED_MAX: Final = 16_384  # networks and names
SOURCES_MAX: Final = 4096


class Attempts:
    """Count logins that have not been proven right; one is forgotten each second. Each login is assigned a moment in
    the future, and the moments of one network and name are a second apart. So the wait of a login depends on earlier
    logins, never on its own password.
    Shapes: `_until` has the time at which all logins of a network and name are forgotten.
    Cost: bounded; beyond the bound, the half that would be forgotten first is forgotten at once, which resets nobody
        who guesses a lot.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._until: dict[tuple[str, str], float] = {}

    def wait_s(self, network: str, name: str) -> float:
        """Return how long a login would have to wait if it began now."""
        return max(0.0, self._level(network, name) + 1 - AT_ONCE)

    def begin(self, network: str, name: str) -> float | None:
        """Count a login and return how long it must wait; None if it is refused, in which case it is not counted."""
        wait_s = self.wait_s(network, name)
        if wait_s > WAIT_MAX_S:
            return None
        if len(self._until) >= COUNTED_MAX:
            kept = sorted(self._until.items(), key=itemgetter(1))[COUNTED_MAX // 2 :]
            self._until = dict(kept)
        self._until[key_of(network, name)] = self._now_s() + self._level(network, name) + 1
        return wait_s

    def uncount(self, network: str, name: str) -> None:
        """Remove one login from the count, because it was right or was not decided."""
        key = key_of(network, name)
        left = self._level(network, name) - 1
        if left > 0:
            self._until[key] -= 1
        else:
            self._until.pop(key, None)

    def _level(self, network: str, name: str) -> float:
        return max(0.0, self._until.get(key_of(network, name), 0.0) - self._now_s())


def key_of(network: str, name: str) -> tuple[str, str]:
    """Return the key by which logins are counted; a name is cut to the longest possible user name."""
    return network, name[: SHORT_STRING_MAX_BYTES + 1]


@dataclass(slots=True)
class LoginCount:
    """Logins since the start, or since the counts were cleared."""

    succeeded: int = 0
    failed: int = 0

    def note(self, *, refused: bool) -> None:
        """Count a login."""
        if refused:
            self.failed += 1
        else:
            self.succeeded += 1


class LoginCounts:
    """Count logins.

    Shapes: `by_source` has network and protocol. Cost: bounded; the networks that logged in longest ago are forgotten.
    """

    def __init__(self) -> None:
        self.by_protocol: dict[str, LoginCount] = {}
        self.by_source: OrderedDict[tuple[str, str], LoginCount] = OrderedDict()

    def note(self, protocol: str, network: str, *, refused: bool) -> None:
        """Count the verdict on a login."""
        total = self.by_protocol.get(protocol)
        if total is None:
            total = self.by_protocol[protocol] = LoginCount()
        total.note(refused=refused)
        source = (network, protocol)
        count = self.by_source.get(source)
        if count is None:
            count = self.by_source[source] = LoginCount()
            if len(self.by_source) > SOURCES_MAX:
                self.by_source.popitem(last=False)
        else:
            self.by_source.move_to_end(source)
        count.note(refused=refused)

    def clear(self) -> None:
        """Begin to count from zero."""
        self.by_protocol.clear()
        self.by_source.clear()
