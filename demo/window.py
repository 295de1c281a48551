"""The sent and unconfirmed flights of a publisher."""

from itertools import takewhile
from typing import NamedTuple


class Flight(NamedTuple):
    """One flight to publish: its row number, routing key and body."""

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
        """Store the flight that is published next; return its delivery tag."""
        tag = self._next_tag
        self._next_tag = tag + 1
        self._unconfirmed[tag] = flight
        return tag

    def settle(self, tag: int, multiple: bool) -> list[Flight]:
        """Remove and return the flights that a confirm (or a nack) names."""
        if not multiple:
            flight = self._unconfirmed.pop(tag, None)
            return [] if flight is None else [flight]
        oldest = list(takewhile(lambda sent: sent <= tag, self._unconfirmed))
        return [self._unconfirmed.pop(sent) for sent in oldest]

    def lost(self) -> list[Flight]:
        """Empty the window for a new channel; return the flights to send again, oldest first."""
        flights = list(self._unconfirmed.values())
        self._unconfirmed.clear()
        self._next_tag = 1
        return flights


def window_of(rows: int, most: int) -> int:
    """Return the limit of unconfirmed messages: lower in a small run, so that the kill happens during it."""
    return max(10, min(most, rows // 50))
