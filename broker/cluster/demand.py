"""Demand: how many messages of one level this node asks for, and what it knows of messages that may be free."""

from __future__ import annotations

from typing import Final

STEP_MIN: Final = 256  # messages in the first lease; each lease that brings as many as were asked for doubles it
STEP_MAX: Final = 4096
STEP_BYTES: Final = 8 << 20
STEADY_MESSAGES: Final = 4  # consumers that settle fewer in two ticks are asked for per message


class Demand:
    """The demand of one level.

    Shapes: ``free`` is set when messages may be free that no lease has looked for. ``bound`` is the number of the slot
        at which the next lease begins to look; ``asked`` is how many messages are being asked for, and ``step`` the
        most that are asked for at once. ``peer_wants`` is for how many more ticks another node needs messages;
        ``notified`` is set once other nodes know that this one does. ``remaining`` is how many free messages there were
        besides the last one that was fetched for basic.get. ``has_room`` is set while the database knows, of a queue
        with limits, that consumers here have room. ``looks`` is set while the next lease looks at everything, whatever
        the bound: a hint may have been lost.
    Units: ``settled_now`` and ``settled_before`` are messages in this tick of 50 ms and in the one before.
    Invariant: ``backlog`` is set while messages of the level may be free, will be with the next commit, or are on
        their way to this node; while it is, new messages are not leased to this node from the start, because they would
        overtake the older ones. Every call with a number below ``bound`` had ended before a lease looked that took all
        it left.
    """

    __slots__ = (
        "_arrived_bytes",
        "_candidate",
        "_candidate_before",
        "asked",
        "backlog",
        "bound",
        "free",
        "has_room",
        "looks",
        "notified",
        "peer_wants",
        "remaining",
        "settled_before",
        "settled_now",
        "step",
    )

    def __init__(self) -> None:
        self._arrived_bytes = 0
        self._candidate = 0  # the next bound: a number that a lease saw; 0 is none
        self._candidate_before = 0  # calls with lower numbers have lower transaction ids than this; 0 is not known yet
        self.asked = 0
        self.backlog = True
        self.bound = 0
        self.free = True
        self.has_room = False
        self.remaining = 0
        self.looks = False
        self.settled_before = 0
        self.settled_now = 0
        self.step = STEP_MIN
        self.notified = False
        self.peer_wants = 0

    def target(self, room: int) -> int:
        """Return how many ready messages this node needs, when its consumers can take `room` now."""
        ahead = self.settled_now + self.settled_before
        if self.peer_wants or ahead < STEADY_MESSAGES:
            ahead = 0
        return min(room + ahead, self.step)

    def note_backlog(self) -> None:
        """Note that a new message becomes free."""
        self.backlog = True

    def note_free(self, number: int) -> None:
        """Note that the slot of a number, or any with 0, may have free messages."""
        self.free = True
        self.backlog = True
        if number < self.bound:
            self.bound = number
        if number < self._candidate:
            self._candidate = number

    def look(self) -> None:
        """Let the next lease look at everything. The bound stays: besides a transaction that is open elsewhere it takes
        many leases to raise it, and each of them would read all rows that were deleted since.
        """
        self.free = self.backlog = self.looks = True

    def begin(self) -> int:
        """Return the number from which a lease looks on."""
        looks, self.looks = self.looks, False
        return 0 if looks else self.bound

    def ask(self, count: int, *, has_room: bool = False) -> None:
        """Note that messages are being asked for, or that the database is told whether there is room for more."""
        self.asked = count
        self.has_room = has_room
        self.free = False

    def arrived(self, size_bytes: int) -> None:
        """Count the memory of messages that were leased."""
        self._arrived_bytes += size_bytes

    def answered(self, count: int, *, more: bool, gathers: bool, has_room: bool = False) -> None:
        """Take the answer: how many messages came, and whether others are free.

        Shapes: `gathers` says that others become free with the next commit of this node, which announces them.
        """
        if count:
            self.notified = False
            if self._arrived_bytes > STEP_BYTES:
                self.step = max(1, self.step // 2)
            elif count >= self.asked and self.asked >= self.step:
                self.step = min(2 * self.step, STEP_MAX)
        self._arrived_bytes = 0
        self.asked = 0
        self.has_room = has_room
        self.free = self.free or more
        self.backlog = self.free or gathers

    def passed(self, last: int, began: int, finished: int) -> None:
        """Raise the bound, after a lease that took everything from the former one up to the slot `last`.

        A slot that a lease saw is a candidate only: calls with lower numbers may be in flight, and the publisher of one
        may commit its next call before this node hears of it. Those calls have lower transaction ids than the next
        lease. Once all of them have ended before a lease looked, that lease took what they left, in order.

        Shapes: `began` is the transaction id of the lease; all calls with ids below `finished` ended before it looked.
        """
        if self._candidate:
            if not self._candidate_before:
                self._candidate_before = began
            if finished < self._candidate_before:
                return
            self.bound = min(self._candidate, last)
        self._candidate = last
        self._candidate_before = 0

    def note_notified(self) -> None:
        """Note that other nodes were told that this one finds nothing."""
        self.notified = True

    def note_peer_wants(self, ticks: int) -> None:
        """Note for a number of ticks that another node finds no free messages."""
        self.peer_wants = ticks

    def settled(self, count: int) -> None:
        """Count messages that were settled. HOT."""
        self.settled_now += count

    def rotate(self) -> None:
        """Begin another tick."""
        self.settled_before, self.settled_now = self.settled_now, 0
        if self.peer_wants:
            self.peer_wants -= 1

    def note_remaining(self, count: int) -> None:
        """Note how many free messages there are besides the one that is being fetched."""
        self.remaining = count

    def has_no_room(self) -> None:
        """Note that the database knows of no room: the last consumer has left, or this node returned messages."""
        self.has_room = False

    def forget(self) -> None:
        """Start afresh: the lease of this node has ended."""
        self.asked = 0
        self.bound = self._candidate = 0
        self.has_room = self.looks = False
        self.backlog = self.free = True
