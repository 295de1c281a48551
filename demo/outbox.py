"""The flights of a publisher and their state, for either client library."""

from collections import deque
from collections.abc import Iterable, Iterator

from demo.ledger import Count, Ledger
from demo.window import Flight


class Outbox:
    """The flights of one publisher: the ones to send again first, then the others in order."""

    __slots__ = ("_again", "_attempts", "_confirmed", "_counts", "_rest")

    def __init__(self, ledger: Ledger, client: int, flights: Iterator[tuple[int, str, bytes]]) -> None:
        self._rest = flights
        self._again: deque[Flight] = deque()
        self._attempts = ledger.attempts
        self._confirmed = ledger.confirmed
        self._counts = ledger.counts(client)

    def connected(self, unconfirmed: Iterable[Flight]) -> None:
        """Start with a new channel: the flights that the last one left unconfirmed go first."""
        self._counts[Count.CONNECTED] += 1
        self._again.extend(unconfirmed)

    def take(self) -> Flight | None:
        """Return the next flight to send, None when there are no more."""
        if self._again:
            flight = self._again.popleft()
        else:
            following = next(self._rest, None)
            if following is None:
                return None
            flight = Flight(*following)
        attempts = self._attempts[flight.row]
        if attempts:
            self._counts[Count.RESENT] += 1
        self._attempts[flight.row] = min(attempts + 1, 255)
        self._counts[Count.PUBLISHED] += 1
        return flight

    def confirmed(self, flights: Iterable[Flight]) -> None:
        """Record that the broker has confirmed the flights."""
        for flight in flights:
            self._confirmed[flight.row] = 1
            self._counts[Count.CONFIRMED] += 1

    def refused(self, flights: Iterable[Flight]) -> None:
        """Queue the flights that the broker nacked for another publish."""
        for flight in flights:
            self._counts[Count.REFUSED] += 1
            self._again.append(flight)

    def returned(self) -> None:
        """Record that a flight was returned without a queue."""
        self._counts[Count.RETURNED] += 1
