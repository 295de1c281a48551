"""The demand for messages of one level: how many this node asks for, and which may be free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STEP_MIN: Final = 256  # messages in the first lease; doubled by each lease that returns as many as were asked for
STEP_MAX: Final = 4096
STEP_BYTES: Final = 8 << 20
STEADY_MESSAGES: Final = 4  # for consumers that settle fewer in two ticks, no messages are leased in advance


@dataclass(slots=True, eq=False)
class Demand:
    """The demand of one level.

    Shapes: ``free`` is set while messages may be free that no lease has searched for. ``bound`` is the number of the
        slot at which the next lease begins its search; ``asked`` is how many messages are being asked for, and ``step``
        the maximum. ``peer_wants`` is the number of ticks for which another node still needs messages; ``notified`` is
        set once a hint has told others that this node does. ``remaining`` is the number of free messages after the last
        fetch for basic.get. ``has_room`` is set while, for a queue with limits, the database records consumers here as
        having room. ``ignores_bound`` is set if the next lease must ignore the bound, for example after a lost hint.
    Units: ``settled_now`` and ``settled_before`` are messages in this tick of 50 ms and in the previous one.
    Invariant: ``backlog`` is set while messages of the level may be free, will be free with the next commit, or are
        being sent to this node. Then new messages are not leased to this node from the start, because they would
        overtake older ones. All calls with numbers below ``bound`` have ended, and a later lease has taken all their
        messages.
    """

    asked: int = 0
    backlog: bool = True
    bound: int = 0
    free: bool = True
    has_room: bool = False
    ignores_bound: bool = False
    notified: bool = False
    peer_wants: int = 0
    remaining: int = 0
    settled_before: int = 0
    settled_now: int = 0
    step: int = STEP_MIN
    _arrived_bytes: int = 0
    _candidate: int = 0  # the next bound: the number of a slot that a lease returned, or 0
    _candidate_before: int = 0  # calls with numbers below the candidate have lower transaction ids; 0 if not yet known

    def target(self, room: int) -> int:
        """Return how many ready messages this node needs if its consumers have room for `room` messages now."""
        ahead = self.settled_now + self.settled_before
        if self.peer_wants or ahead < STEADY_MESSAGES:
            ahead = 0
        return min(room + ahead, self.step)

    def note_backlog(self) -> None:
        """Record that a message is about to become free."""
        self.backlog = True

    def note_free(self, number: int) -> None:
        """Record that a slot may have free messages; 0 means any slot."""
        self.free = True
        self.backlog = True
        if number < self.bound:
            self.bound = number
        if number < self._candidate:
            self._candidate = number

    def ignore_bound(self) -> None:
        """Let the next lease ignore the bound. The bound itself stays: while a transaction is open elsewhere, many
        leases are needed to raise it again, and each would read all rows deleted in the meantime.
        """
        self.free = self.backlog = self.ignores_bound = True

    def begin(self) -> int:
        """Return the number of the slot at which the lease begins its search."""
        ignored, self.ignores_bound = self.ignores_bound, False
        return 0 if ignored else self.bound

    def ask(self, count: int, *, has_room: bool = False) -> None:
        """Record that a request for messages, or a report of room, is being sent."""
        self.asked = count
        self.has_room = has_room
        self.free = False

    def arrived(self, size_bytes: int) -> None:
        """Count the memory of messages that were leased."""
        self._arrived_bytes += size_bytes

    def answered(self, count: int, *, more: bool, gathers: bool, has_room: bool = False) -> None:
        """Handle an answer: the number of messages received, and whether more are free. Shapes: `gathers` means that
        messages become free with the next commit of this node, which announces them.
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
        """Raise the bound, after a lease that took all free messages from the old bound up to the slot `last`.

        At first that slot is only a candidate, because calls with lower numbers may still be running. These calls have
        lower transaction ids than the next lease. So a lease that begins after all of them have ended finds all their
        messages, even if the hint of their node has not arrived.
        Shapes: `began` is the transaction id of the lease; all calls with ids below `finished` had ended before it.
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
        """Record that a hint has told other nodes that this one found nothing."""
        self.notified = True

    def note_peer_wants(self, ticks: int) -> None:
        """Record, for a number of ticks, that another node finds no free messages."""
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
        """Record the number of free messages besides the one that is being fetched."""
        self.remaining = count

    def has_no_room(self) -> None:
        """Record that the database lists no room here: the last consumer was removed, or messages were returned."""
        self.has_room = False

    def forget(self) -> None:
        """Reset the demand, because the epoch of this node has ended."""
        self.asked = 0
        self.bound = self._candidate = 0
        self.has_room = self.ignores_bound = False
        self.backlog = self.free = True
