"""The credit of publishers: input is limited while consumers with room wait for ready messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from broker.amqp.output import ConnectionOutput

SHARE_ENTRIES: Final = 2048  # per vhost and turn: the number that its workers deliver in a turn
PIECE_ENTRIES: Final = 256  # the smallest part of a share for one connection: smaller parts cost more than they gain
LEAST_PART: Final = 8  # publishers to lagging queues may add one entry per this many deliveries
AWAITED_PART: Final = 2  # ... and while only acks are awaited: the consumers, not the workers, set the pace
LEAST_ENTRIES: Final = 16  # the least share, so that a publisher never stops for long


class PublishCredit:
    """Hold back the publishers of one vhost that have used up their part of a turn, and release them in turn.

    A message counts once for each queue that it enters. A queue lags when the workers have not delivered all the
    messages that its consumers have room for: until it has caught up, its publishers may add only a small part of what
    is delivered. A queue whose consumers have no room lags only while it is awaited: they take many messages, and will
    soon have room again.
    Shapes: ``waiting`` are the publishers that have used up their part, and ``lagging`` those of queues that lag.
    Units: queue entries. ``serial`` counts the turns of the workers, ``lagged`` how often a message entered a lagging
        queue.
    """

    def __init__(self, schedule: Callable[[], None] = lambda: None) -> None:
        """Call `schedule` when a publisher begins to wait: a turn of the workers has to follow."""
        self._schedule = schedule
        self.waiting: deque[CreditShare] = deque()
        self.lagging: deque[CreditShare] = deque()
        self.serial = 0
        self.lagged = 0

    @property
    def busy(self) -> bool:
        """Whether a publisher waits."""
        return bool(self.waiting or self.lagging)

    def wait(self, share: CreditShare) -> None:
        """Queue a publisher for release in one of the next turns."""
        (self.lagging if share.lagging else self.waiting).append(share)
        self._schedule()

    def turn(self, delivered: int, *, behind: bool, crowded: bool, awaited: bool = False) -> None:
        """Begin a turn and release publishers, after the workers have delivered this many messages. `behind` is set if
        some queues can be served further, `crowded` if they are more than one turn serves; then all publishers wait for
        them. `awaited` is set if queues will soon be served further; otherwise a turn without them follows. While no
        publisher waits, counting the turn in ``serial`` is enough.
        """
        self.serial += 1
        least = max(LEAST_ENTRIES, delivered // LEAST_PART)
        if self.waiting:
            self._release(self.waiting, least if crowded else SHARE_ENTRIES)
        if self.lagging:
            if behind:
                self._release(self.lagging, least)
            elif not awaited:
                self._release(self.lagging, SHARE_ENTRIES)
            elif delivered:
                self._release(self.lagging, max(LEAST_ENTRIES, delivered // AWAITED_PART))
        if self.waiting or (self.lagging and not awaited):
            self._schedule()

    @staticmethod
    def _release(waiting: deque[CreditShare], entries: int) -> None:
        """Release the publishers that have waited longest, each with its part of the entries."""
        piece = max(PIECE_ENTRIES, entries // len(waiting))
        while waiting and entries > 0:
            waiting.popleft().release(min(piece, entries))
            entries -= piece


class CreditShare:
    """The credit of one connection for publishes in this turn.

    Units: ``left`` is in queue entries, and holds for the turn with number ``serial``. ``lagging`` means that the
        connection was last held because of a lagging queue, and does not get a new share in each turn.
    """

    __slots__ = ("_connection", "credit", "lagging", "left", "serial")

    def __init__(self, connection: ConnectionOutput, credit: PublishCredit) -> None:
        self._connection = connection
        self.credit = credit
        self.serial = credit.serial
        self.left = SHARE_ENTRIES
        self.lagging = False

    def begin(self) -> int:
        """Return the number of entries left for a publish or a run of publishes, which adds at least one.

        While ``serial`` equals the credit's, the answer is ``left``.
        """
        if self.serial != self.credit.serial:
            self.serial = self.credit.serial
            self.left = PIECE_ENTRIES if self.lagging else SHARE_ENTRIES
        return self.left

    def end(self, left: int, lagged: int) -> None:
        """Record the entries left; hold the connection if there are none, or if the publish entered a lagging queue.
        `lagged` is the credit's ``lagged`` before the publish: if it has not changed and `left` is recorded, nothing
        remains to be done.
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
