"""What a publisher has sent and not yet seen confirmed."""

from itertools import takewhile
from typing import NamedTuple


class Flight(NamedTuple):
    """One flight on its way: its row number, routing key and body."""

    row: int
    key: str
    body: bytes


class Window:
    """The unconfirmed flights of one publisher, by delivery tag, oldest first.

    Invariant: the tags in it ascend, because a channel numbers its publishes one by one.
    """

    __slots__ = ("_next_tag", "_unconfirmed")

    def __init__(self) -> None:
        self._unconfirmed: dict[int, Flight] = {}
        self._next_tag = 1

    def __len__(self) -> int:
        return len(self._unconfirmed)

    def sent(self, flight: Flight) -> int:
        """Remember the flight that is published next; return its delivery tag."""
        tag = self._next_tag
        self._next_tag = tag + 1
        self._unconfirmed[tag] = flight
        return tag

    def settle(self, tag: int, multiple: bool) -> list[Flight]:
        """Forget and return the flights that a confirm (or a nack) names."""
        if not multiple:
            flight = self._unconfirmed.pop(tag, None)
            return [] if flight is None else [flight]
        oldest = list(takewhile(lambda sent: sent <= tag, self._unconfirmed))
        return [self._unconfirmed.pop(sent) for sent in oldest]

    def lost(self) -> list[Flight]:
        """Empty the window for a new channel; return what has to be sent again, oldest first."""
        flights = list(self._unconfirmed.values())
        self._unconfirmed.clear()
        self._next_tag = 1
        return flights


def window_of(rows: int, most: int) -> int:
    """Return how many confirms may be outstanding: fewer in a small run, so that it is not over before the kill."""
    return max(10, min(most, rows // 50))
