"""One publishing connection, driven by events: it sends as much as window, schedule and limit allow."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from selectors import EVENT_READ, EVENT_WRITE
from typing import Final

from broker.perf.histogram import Histogram
from broker.perf.outcome import RunTally
from broker.perf.peer import PeerSocket, send_some
from broker.perf.spool import CHUNK_BYTES, Spool

NEVER_NS: Final = 1 << 62
_DENOMINATOR_MAX: Final = 10**6  # the largest denominator of a rate


class Schedule:
    """The due times of messages at a fixed rate, independent of progress (an open schedule).

    Invariant: `due(now_ns)` counts exactly the messages whose `due_ns` is not later than `now_ns`.
    """

    def __init__(self, per_s: float, start_ns: int) -> None:
        rate = Fraction(per_s).limit_denominator(_DENOMINATOR_MAX)
        self._period = 10**9 * rate.denominator  # nanoseconds for `_numerator` messages
        self._numerator = max(1, rate.numerator)
        self._start_ns = start_ns

    def due_ns(self, number: int) -> int:
        """Return when a message is due; messages are numbered from 0."""
        return self._start_ns + number * self._period // self._numerator

    def due(self, now_ns: int) -> int:
        elapsed_ns = now_ns - self._start_ns
        return ((elapsed_ns + 1) * self._numerator - 1) // self._period + 1 if elapsed_ns >= 0 else 0


@dataclass(frozen=True, slots=True)
class SenderPace:
    """How a sender publishes. Shapes: `window` 0 means no confirms; None means no limit."""

    window: int = 0
    messages: int | None = None
    per_s: float | None = None


class Sender:
    """Publish the messages of a spool, and count the broker's answers.

    Invariant: no message is sent before it is due; with confirms, at most `window` messages are unconfirmed.
    """

    def __init__(
        self, peer: PeerSocket, spool: Spool, pace: SenderPace, confirm_times: Histogram, slice_bytes: int = 0
    ) -> None:
        """`slice_bytes` limits the bytes that share a timestamp and are sent at once; 0 for CHUNK_BYTES."""
        self.peer = peer
        self.confirm_times = confirm_times
        self._socket = peer.socket
        self._spool = spool
        self._view = memoryview(spool.buffer)
        self._pace = pace
        self._limit = NEVER_NS if pace.messages is None else pace.messages
        self._schedule: Schedule | None = None
        self.scanner = peer.scanner(lenient=True)
        self._pending = self._view[:0]
        self._chunk_bytes = min(slice_bytes or CHUNK_BYTES, CHUNK_BYTES, spool.length)
        self._at = 0
        self._prepared = 0
        self._confirmed = 0
        self._timed = 0  # messages whose confirm latency is recorded
        self._unconfirmed: deque[tuple[int, int]] = deque()  # by slice: last message, and when its first was due

    def start(self, at_ns: int) -> None:
        if self._pace.per_s:
            self._schedule = Schedule(self._pace.per_s, at_ns)
        self._socket.setblocking(False)

    def stop(self) -> None:
        """Send the messages that are already prepared, and no more."""
        self._limit = min(self._limit, self._prepared)

    @property
    def published(self) -> int:
        """The number of complete messages that the kernel has accepted."""
        return self._prepared - -(-len(self._pending) // self._spool.stride)

    @property
    def confirmed(self) -> int:
        return self._confirmed - self.scanner.nacked

    def tally(self) -> RunTally:
        nacked, returned, blocked = self.scanner.nacked, self.scanner.returned, bool(self.scanner.blocked_for)
        return RunTally(self.published, self.confirmed, nacked, returned, blocked=blocked)

    @property
    def flushed(self) -> bool:
        """Whether all prepared messages are sent."""
        return not self._pending

    @property
    def done(self) -> bool:
        """Whether every message is sent, and confirmed if confirms are on."""
        confirmed = not self._pace.window or self._confirmed >= self._prepared
        return self._prepared >= self._limit and not self._pending and confirmed

    def wakes_ns(self) -> int:
        """Return when the next message is due, if only the schedule delays it; else NEVER_NS."""
        if not self._schedule or self._pending or self._allowed() <= 0:
            return NEVER_NS
        return self._schedule.due_ns(self._prepared)

    def interest(self, now_ns: int) -> int:
        return EVENT_READ | EVENT_WRITE if self._pending or self._room(now_ns) > 0 else EVENT_READ

    def react(self, events: int, now_ns: int) -> None:
        """Read and write what is possible; without events, send what is due. Raises: Refusal, BrokenStream, OSError."""
        if events & EVENT_READ:
            self.pull(now_ns)
        self.push(now_ns)

    def push(self, now_ns: int) -> None:
        """Send the pending bytes, or else the next slice. Raises: OSError."""
        if self._pending or self._prepare_slice(now_ns):
            self._pending = send_some(self._socket, self._pending)

    def settle(self, limit_s: float) -> None:
        """Wait until the broker has read all messages and sent all returns. Raises: Refusal, BrokenStream, OSError."""
        self._socket.settimeout(limit_s)
        self._socket.sendall(self.peer.round_trip)
        while not self.scanner.settled:
            self.pull(time.monotonic_ns())

    def pull(self, now_ns: int) -> None:
        """Read confirms, nacks and returns. Raises: Refusal, BrokenStream, OSError."""
        if self.peer.scan(self.scanner.scan, "publisher"):
            self._count_confirms(now_ns)

    def _allowed(self) -> int:
        allowed = self._limit - self._prepared
        if self._pace.window:
            allowed = min(allowed, self._pace.window - self._prepared + self._confirmed)
        return allowed

    def _room(self, now_ns: int) -> int:
        allowed = self._allowed()
        if self._schedule and allowed > 0:
            allowed = min(allowed, self._schedule.due(now_ns) - self._prepared)
        return allowed

    def _prepare_slice(self, now_ns: int) -> bool:
        """Prepare the next slice with its timestamps; return whether there is one."""
        allowed = self._room(now_ns)
        if allowed <= 0:
            return False
        spool, at = self._spool, self._at
        if not at and self._prepared:
            spool.renew()
        stop = min(at + min(allowed, self._chunk_bytes // spool.stride or 1) * spool.stride, spool.length)
        count = (stop - at) // spool.stride
        if self._schedule:
            dues_ns = [self._schedule.due_ns(number) for number in range(self._prepared, self._prepared + count)]
            spool.stamp_each(at, dues_ns, now_ns)
            now_ns = dues_ns[0]
        else:
            spool.stamp_all(at, stop, now_ns)
        self._pending = self._view[at:stop]
        self._prepared += count
        if self._pace.window:
            self._unconfirmed.append((self._prepared, now_ns))
        self._at = stop % spool.length
        return True

    def _count_confirms(self, now_ns: int) -> None:
        confirms = self.scanner.confirms
        self._confirmed = confirms.count
        unconfirmed = self._unconfirmed
        while unconfirmed:
            last, due_ns = unconfirmed[0]
            settled = min(last, confirms.watermark)
            if settled > self._timed:
                self.confirm_times.record(now_ns - due_ns, settled - self._timed)
                self._timed = settled
            if last > settled:
                break
            unconfirmed.popleft()
