"""The tenure of a node: its state, and how long it may act. The lease of a node begins when it *sends* a heartbeat that
is answered. Other nodes observe the heartbeat later, and wait for the lease and a margin; so the node stops before
another one takes over.

Units: seconds of a clock that is never set and counts while the machine sleeps (CLOCK_BOOTTIME), from the caller.
"""

from __future__ import annotations

from enum import Enum


class TenureState(Enum):
    """The state of a node's membership."""

    JOINING = "joining"  # it has not begun an epoch yet
    JOINED = "joined"  # it may act until its lease ends
    PAUSED = "paused"  # its lease has ended, but perhaps not its epoch
    LOST = "lost"  # its epoch has ended
    LEFT = "left"


class NodeTenure:
    """The state of this node, and the moment at which its lease ends.

    Invariant: `may_act` returns True only in JOINED, and only before the lease ends.
    """

    def __init__(self, lease_s: float) -> None:
        assert lease_s > 0
        self.lease_s = lease_s
        self.state = TenureState.JOINING
        self.epoch = 0
        self.ends_s = 0.0

    def join(self, epoch: int, sent_s: float) -> None:
        """Begin the tenure of a new epoch. `sent_s` is when the call that joined was sent."""
        assert epoch > self.epoch
        assert self.state is TenureState.JOINING
        self.state = TenureState.JOINED
        self.epoch = epoch
        self.ends_s = sent_s + self.lease_s

    def answered(self, epoch: int, sent_s: float, now_s: float) -> bool:
        """Extend the lease after an answered heartbeat, and return whether the node resumes after a pause. Ignore the
        answer if the heartbeat was sent in an earlier epoch, or longer ago than a lease.
        """
        ends_s = sent_s + self.lease_s
        if epoch != self.epoch or self.state not in {TenureState.JOINED, TenureState.PAUSED} or ends_s <= now_s:
            return False
        was = self.state
        self.state = TenureState.JOINED
        self.ends_s = max(self.ends_s, ends_s)
        return was is TenureState.PAUSED

    def may_act(self, now_s: float) -> bool:
        """Return whether the node may act on its leases. Cost: two comparisons."""
        return now_s < self.ends_s and self.state is TenureState.JOINED

    def expired(self, now_s: float) -> bool:
        """Pause a node whose lease has ended, and return whether this changed its state."""
        if self.state is not TenureState.JOINED or now_s < self.ends_s:
            return False
        self.state = TenureState.PAUSED
        return True

    def fence(self, epoch: int) -> bool:
        """Record that an epoch has ended, and return whether this changed the state of the node."""
        if epoch != self.epoch or self.state not in {TenureState.JOINED, TenureState.PAUSED}:
            return False
        self.state = TenureState.LOST
        return True

    def rejoin(self) -> None:
        """Prepare for a new epoch after the previous one was lost."""
        assert self.state is TenureState.LOST
        self.state = TenureState.JOINING

    def leave(self) -> None:
        self.state = TenureState.LEFT
