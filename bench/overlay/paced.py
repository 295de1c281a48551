"""Publishers that keep a schedule: every message carries the time at which it was due, which also is its number."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.herd import Source
from broker.perf.peer import Address, PeerConnection
from broker.perf.sender import NEVER_NS, Schedule
from broker.perf.spool import Material, Spool
from broker.perf.wire import PUBLISH_CHANNEL

IDLE_S = 0.005
BODY_BYTES = 64
_BURST_NS = 10_000_000  # due messages leave together this often: one by one they would load the machine
_SPOOL_MAX_BYTES = 64 << 20
_WINDOW = 20_000


class PacedSource(Source):
    """Publishes its keys in turn at a steady rate, in bursts."""

    def __init__(self, peer: PeerConnection, spool: Spool, window: int, per_s: float) -> None:
        super().__init__(peer, spool, window)
        self._schedule = Schedule(per_s)
        self._next_ns = NEVER_NS

    def start(self, at_ns: int) -> None:
        """Begin, or go on after a pause: the next message is due at a time of the monotonic clock."""
        self._schedule.start(at_ns - self._schedule.due_ns(self.sent) + self._schedule.due_ns(0))
        self._next_ns = at_ns

    def take(self, room: int) -> int:
        """Make due messages pending, with their stamps; return their number."""
        now_ns = time.monotonic_ns()
        if self._pending or now_ns < self._next_ns:
            return 0
        first, at = self.sent, self._at
        due = self._schedule.due(now_ns)
        count = super().take(min(room, due - first))
        if count:
            dues_ns = [self._schedule.due_ns(number) for number in range(first, first + count)]
            self._spool.stamp_each(at, dues_ns, now_ns)
        if self.sent >= due:
            self._next_ns = now_ns + _BURST_NS
        return count


def paced_source(
    address: Address, exchange: str, keys: Sequence[str], per_s: float, *, body_bytes: int = BODY_BYTES
) -> PacedSource:
    """Return a publisher of transient, confirmed messages with these keys. Raises: Refusal, OSError."""
    peer = PeerConnection(address, PUBLISH_CHANNEL)
    peer.select_confirms()
    spool = Spool(Material(exchange, tuple(keys), body_bytes), 0, _SPOOL_MAX_BYTES)
    return PacedSource(peer, spool, _WINDOW, per_s)
