"""What a publisher has to send and what became of it, whichever client sends it."""

from collections import deque
from collections.abc import Iterable, Iterator

from demo.ledger import Count, Ledger
from demo.window import Flight


class Outbox:
    """The flights of one publisher: the ones to send again first, then the rest in order."""

    __slots__ = ("_again", "_attempts", "_confirmed", "_counts", "_rest")

    def __init__(self, ledger: Ledger, client: int, flights: Iterator[tuple[int, str, bytes]]) -> None:
        self._rest = flights
        self._again: deque[Flight] = deque()
        self._attempts = ledger.attempts
        self._confirmed = ledger.confirmed
        self._counts = ledger.counts(client)

    def connected(self, unconfirmed: Iterable[Flight]) -> None:
        """Start with a new channel: what the last one left unconfirmed goes first."""
        self._counts[Count.CONNECTED] += 1
        self._again.extend(unconfirmed)

    def take(self) -> Flight | None:
        """Return the next flight to send, None when there is none left."""
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
        """Take note that the broker has taken responsibility for the flights."""
        for flight in flights:
            self._confirmed[flight.row] = 1
            self._counts[Count.CONFIRMED] += 1

    def refused(self, flights: Iterable[Flight]) -> None:
        """Send the flights again that the broker nacked."""
        for flight in flights:
            self._counts[Count.REFUSED] += 1
            self._again.append(flight)

    def returned(self) -> None:
        """Take note that a flight found no queue."""
        self._counts[Count.RETURNED] += 1
