"""Flow control of publishers: limit their input while consumers with room wait for ready messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from broker.amqp.output import ConnectionOutput

SHARE_ENTRIES: Final = 2048  # entries per vhost and turn: the number that its workers deliver in a turn
PIECE_ENTRIES: Final = 256  # shares are divided into pieces of at least this size: smaller ones are inefficient
DELIVERIES_PER_ENTRY: Final = 8  # publishers to lagging queues may add one entry for this many deliveries
DELIVERIES_PER_AWAITED_ENTRY: Final = 2  # this many instead while the workers wait for acks
LEAST_ENTRIES: Final = 16  # the minimum per turn, so that no publisher stops for long


class PublishCredit:
    """Hold back the publishers of one vhost that have used up their share of a turn, and release them in later turns.

    A message counts once for each queue that it enters. A queue lags if the workers have not delivered all the messages
    that its consumers have room for. Until it has caught up, its publishers may add only a fraction of the number of
    messages that are delivered. A queue whose consumers have no room lags only while it is awaited: its consumers
    acknowledge many messages, and will soon have room again.
    Shapes: ``waiting`` contains publishers that have used up their share, ``lagging`` those of queues that lag.
    Units: queue entries. ``serial`` counts the turns of the workers, ``lagged`` how often messages were added to a
        lagging queue.
    """

    def __init__(self, schedule: Callable[[], None] = lambda: None) -> None:
        """`schedule` schedules a turn of the workers; it is called when a publisher has to wait."""
        self._schedule = schedule
        self.waiting: deque[CreditShare] = deque()
        self.lagging: deque[CreditShare] = deque()
        self.serial = 0
        self.lagged = 0

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.lagging)

    def wait(self, share: CreditShare) -> None:
        """Queue a publisher for release in one of the next turns."""
        (self.lagging if share.lagging else self.waiting).append(share)
        self._schedule()

    def turn(self, delivered: int, *, behind: bool, crowded: bool, awaited: bool = False) -> None:
        """Begin a turn and release publishers, after the workers have delivered `delivered` messages. `behind` is set
        if queues remain to be served, and `crowded` if they are more than one turn serves, so that every publisher gets
        less. `awaited` is set if acks will soon make room for deliveries; otherwise another turn is scheduled for
        publishers to lagging queues. While no publisher waits, the caller may increment `serial` instead.
        """
        self.serial += 1
        least = max(LEAST_ENTRIES, delivered // DELIVERIES_PER_ENTRY)
        if self.waiting:
            self._release(self.waiting, least if crowded else SHARE_ENTRIES)
        if self.lagging:
            if behind:
                self._release(self.lagging, least)
            elif not awaited:
                self._release(self.lagging, SHARE_ENTRIES)
            elif delivered:
                self._release(self.lagging, max(LEAST_ENTRIES, delivered // DELIVERIES_PER_AWAITED_ENTRY))
        if self.waiting or (self.lagging and not awaited):
            self._schedule()

    @staticmethod
    def _release(waiting: deque[CreditShare], entries: int) -> None:
        """Release the publishers that have waited longest, and divide the entries among them."""
        piece = max(PIECE_ENTRIES, entries // len(waiting))
        while waiting and entries > 0:
            waiting.popleft().release(min(piece, entries))
            entries -= piece


class CreditShare:
    """The credit of one connection for publishes in this turn.

    Units: ``left`` is the number of queue entries left in turn ``serial``. ``lagging`` is set if the connection was
        last held because of a lagging queue: then it gets less in a new turn.
    """

    __slots__ = ("_connection", "credit", "lagging", "left", "serial")

    def __init__(self, connection: ConnectionOutput, credit: PublishCredit) -> None:
        self._connection = connection
        self.credit = credit
        self.serial = credit.serial
        self.left = SHARE_ENTRIES
        self.lagging = False

    def begin(self) -> int:
        """Return the number of entries left. While `serial` equals the credit's, the caller may read `left` instead."""
        if self.serial != self.credit.serial:
            self.serial = self.credit.serial
            self.left = PIECE_ENTRIES if self.lagging else SHARE_ENTRIES
        return self.left

    def end(self, left: int, lagged: int) -> None:
        """Record the entries left; hold the connection if there are none, or if the publish entered a lagging queue.
        `lagged` is the credit's `lagged` before the publish: if it has not changed and entries are left, the caller
        may set `left` instead.
        """
        self.left = left
        lags = self.credit.lagged != lagged
        if (left <= 0 or lags) and not self._connection.held:
            self.lagging = lags
            self._connection.hold()
            self.credit.wait(self)

    def release(self, entries: int) -> None:
        """Grant the connection a number of entries and resume it."""
        self.serial = self.credit.serial
        self.left = entries
        self._connection.release()
