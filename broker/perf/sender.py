"""One publishing connection, driven by events: sends as much as window, schedule and limit allow."""

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
_MOST_PARTS: Final = 10**6  # the largest denominator of a rate


class Schedule:
    """An open schedule: its due times are independent of progress.

    Invariant: of the messages due at `now`, the last has `due_ns` <= `now`, and the next has a later one.
    """

    def __init__(self, per_s: float, start_ns: int) -> None:
        """Set the rate and the due time of the first message."""
        rate = Fraction(per_s).limit_denominator(_MOST_PARTS)
        self._period = 10**9 * rate.denominator  # nanoseconds of `_times` messages
        self._times = max(1, rate.numerator)
        self._start_ns = start_ns

    def due_ns(self, number: int) -> int:
        """Return when a message is due; numbers start at 0."""
        return self._start_ns + number * self._period // self._times

    def due(self, now_ns: int) -> int:
        """Return how many messages are due by now."""
        elapsed_ns = now_ns - self._start_ns
        return ((elapsed_ns + 1) * self._times - 1) // self._period + 1 if elapsed_ns >= 0 else 0


@dataclass(frozen=True, slots=True)
class SenderPace:
    """How a sender publishes.

    Shapes: `window` 0 means no confirms; `messages` None means no limit, `per_s` None as fast as possible.
    """

    window: int = 0
    messages: int | None = None
    per_s: float | None = None


class Sender:
    """Publish a spool and count the broker's answers.

    Invariant: at most `window` messages are unconfirmed, and no message is sent before it is due.
    """

    def __init__(
        self, peer: PeerSocket, spool: Spool, pace: SenderPace, confirm_times: Histogram, slice_bytes: int = 0
    ) -> None:
        """`slice_bytes` bounds how much is stamped with one time and given to the kernel at once; 0: CHUNK_BYTES."""
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
        self._taken = 0
        self._confirmed = 0
        self._settled = 0  # messages whose confirm latency has been recorded
        self._waiting: deque[tuple[int, int]] = deque()  # last number of a slice, and when it was due

    def start(self, at_ns: int) -> None:
        """Start the schedule."""
        if self._pace.per_s:
            self._schedule = Schedule(self._pace.per_s, at_ns)
        self._socket.setblocking(False)

    def stop(self) -> None:
        """Send the messages that are already pending, and no more."""
        self._limit = min(self._limit, self._taken)

    @property
    def published(self) -> int:
        """The number of whole messages that the kernel has accepted."""
        return self._taken - -(-len(self._pending) // self._spool.stride)

    @property
    def confirmed(self) -> int:
        return self._confirmed - self.scanner.nacked

    def tally(self) -> RunTally:
        nacked, returned, blocked = self.scanner.nacked, self.scanner.returned, bool(self.scanner.blocked_for)
        return RunTally(self.published, self.confirmed, nacked, returned, blocked=blocked)

    @property
    def flushed(self) -> bool:
        """Whether the connection is between two messages."""
        return not self._pending

    @property
    def done(self) -> bool:
        """Whether every message is sent, and confirmed if confirms are on."""
        confirmed = not self._pace.window or self._confirmed >= self._taken
        return self._taken >= self._limit and not self._pending and confirmed

    def wakes_ns(self) -> int:
        """Return when the next message is due that only the schedule delays; NEVER_NS if only an event can tell."""
        if not self._schedule or self._pending or self._allowed() <= 0:
            return NEVER_NS
        return self._schedule.due_ns(self._taken)

    def interest(self, now_ns: int) -> int:
        """Return the selector events to wait for."""
        return EVENT_READ | EVENT_WRITE if self._pending or self._room(now_ns) > 0 else EVENT_READ

    def react(self, events: int, now_ns: int) -> None:
        """Perform the reads and writes that have become possible; without events, a message is due.

        Raises: Refusal, BrokenStream, OSError.
        """
        if events & EVENT_READ:
            self.pull(now_ns)
        self.push(now_ns)

    def push(self, now_ns: int) -> None:
        """Send the pending bytes, or else the next slice. Raises: OSError."""
        if self._pending or self._take(now_ns):
            self._pending = send_some(self._socket, self._pending)

    def settle(self, limit_s: float) -> None:
        """Wait until the broker has read everything and has returned what it will.

        Raises: Refusal, BrokenStream, OSError.
        """
        self._socket.settimeout(limit_s)
        self._socket.sendall(self.peer.round_trip)
        while not self.scanner.settled:
            self.pull(time.monotonic_ns())

    def pull(self, now_ns: int) -> None:
        """Read confirms, nacks and returns. Raises: Refusal, BrokenStream, OSError."""
        if self.peer.scan(self.scanner.scan, "publisher"):
            self._count_confirms(now_ns)

    def _allowed(self) -> int:
        room = self._limit - self._taken
        if self._pace.window:
            room = min(room, self._pace.window - self._taken + self._confirmed)
        return room

    def _room(self, now_ns: int) -> int:
        room = self._allowed()
        if self._schedule and room > 0:
            room = min(room, self._schedule.due(now_ns) - self._taken)
        return room

    def _take(self, now_ns: int) -> bool:
        """Prepare the next slice with its stamps; return whether there is one."""
        room = self._room(now_ns)
        if room <= 0:
            return False
        spool, at = self._spool, self._at
        if not at and self._taken:
            spool.renew()
        stop = min(at + min(room, self._chunk_bytes // spool.stride or 1) * spool.stride, spool.length)
        count = (stop - at) // spool.stride
        if self._schedule:
            dues_ns = [self._schedule.due_ns(number) for number in range(self._taken, self._taken + count)]
            spool.stamp_each(at, dues_ns, now_ns)
            now_ns = dues_ns[0]
        else:
            spool.stamp_all(at, stop, now_ns)
        self._pending = self._view[at:stop]
        self._taken += count
        if self._pace.window:
            self._waiting.append((self._taken, now_ns))
        self._at = stop % spool.length
        return True

    def _count_confirms(self, now_ns: int) -> None:
        confirms = self.scanner.confirms
        self._confirmed = confirms.count
        waiting = self._waiting
        while waiting:
            last, due_ns = waiting[0]
            settled = min(last, confirms.watermark)
            if settled > self._settled:
                self.confirm_times.record(now_ns - due_ns, settled - self._settled)
                self._settled = settled
            if last > settled:
                break
            waiting.popleft()
