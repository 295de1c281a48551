"""Count logins by protocol, network and user name, and delay or refuse excessive ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from broker.amqp.wire import SHORT_STRING_MAX_BYTES

BURST: Final = 10  # logins of one network and name, with unproven passwords, that need not wait
WAIT_MAX_S: Final = 5.0  # a login that would have to wait longer is refused; a handshake may take ten seconds
COUNTED_MAX: Final = 16_384  # pairs of a network and a name
SOURCES_MAX: Final = 4096


class Attempts:
    """Limit the rate of logins whose passwords have not been proven, with a leaky bucket for each network and name. A
    bucket leaks one login per second, and logins beyond BURST wait. The wait of a login depends on earlier logins,
    never on its own password.
    Shapes: `_until` maps each network and name to the time at which its bucket will be empty.
    Cost: at most COUNTED_MAX buckets. At this limit, the half that will be empty soonest is dropped, so that the count
        of a persistent guesser is not reset.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._until: dict[tuple[str, str], float] = {}

    def wait_s(self, network: str, name: str) -> float:
        """Return how long a login would have to wait if it began now."""
        return max(0.0, self._level(network, name) + 1 - BURST)

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
        """Remove one login from the count, because its password was right or was not checked."""
        key = key_of(network, name)
        if self._level(network, name) > 1:
            self._until[key] -= 1
        else:
            self._until.pop(key, None)

    def _level(self, network: str, name: str) -> float:
        return max(0.0, self._until.get(key_of(network, name), 0.0) - self._now_s())


def key_of(network: str, name: str) -> tuple[str, str]:
    """Return the key by which logins are counted; a name that is too long for a user is cut."""
    return network, name[: SHORT_STRING_MAX_BYTES + 1]


@dataclass(slots=True)
class LoginCount:
    """Logins since startup, or since the counts were cleared."""

    succeeded: int = 0
    failed: int = 0

    def note(self, *, refused: bool) -> None:
        if refused:
            self.failed += 1
        else:
            self.succeeded += 1


class LoginCounts:
    """Count the outcomes of logins.

    Shapes: a key of `by_source` is a network and a protocol.
    Cost: at most SOURCES_MAX pairs of a network and a protocol; beyond that, the least recently used pair is dropped.
    """

    def __init__(self) -> None:
        self.by_protocol: dict[str, LoginCount] = {}
        self.by_source: OrderedDict[tuple[str, str], LoginCount] = OrderedDict()

    def note(self, protocol: str, network: str, *, refused: bool) -> None:
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
        self.by_protocol.clear()
        self.by_source.clear()
