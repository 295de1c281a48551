"""One consuming connection, driven by events: it counts deliveries, acks them, and reads the timestamps in bodies."""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from selectors import EVENT_READ, EVENT_WRITE
from typing import Final

from broker.perf import wire
from broker.perf.histogram import Histogram
from broker.perf.outcome import RunTally
from broker.perf.peer import BUFFER_BYTES, PeerSocket, send_some
from broker.perf.sender import NEVER_NS
from broker.perf.spool import DUE_BYTES, STAMP, STAMP_BYTES

_SAMPLES: Final = 64  # timestamps to evaluate in one read
_SLOW_READ_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class ReceiverPace:
    """The pace of a receiver. Shapes: `ack_every` 0 means auto-ack; `per_s` None means as fast as possible."""

    ack_every: int
    body_bytes: int
    per_s: float | None = None


class DeliveryQuota:
    """The number of deliveries that all receivers of a process together may still count."""

    def __init__(self, deliveries: int | None) -> None:
        self.left = NEVER_NS if deliveries is None else deliveries

    def take(self, deliveries: int) -> int:
        """Take up to this many deliveries from the quota, and return how many may be counted."""
        taken = min(deliveries, self.left)
        self.left -= taken
        return taken


class LatencyRecorder:
    """The latencies that a process's receivers measured, from the due time and from the send time of each message.

    Invariant: a timestamp from outside the run belongs to another run and is ignored.
    """

    def __init__(self, body_bytes: int) -> None:
        self.times = {name: Histogram() for name in ("due_times", "sent_times", "late_times")}
        self.due_times, self.sent_times, self.late_times = self.times.values()  # late: from due to sent
        self.now_ns = 0
        self._since_ns = NEVER_NS if body_bytes < DUE_BYTES else 0
        self._sent_too = body_bytes >= STAMP_BYTES

    def start(self, at_ns: int) -> None:
        """Start recording, if the bodies have room for timestamps."""
        self._since_ns = max(self._since_ns, at_ns)

    def record(self, buffer: bytes | bytearray, at: int, stride: int, count: int) -> None:
        """Record `count` messages; of many, record a sample, each standing for its neighbours too."""
        now_ns, since_ns = self.now_ns, self._since_ns
        step = 1 + count // _SAMPLES
        for number in range(0, count, step):
            place = at + number * stride
            due_ns = int.from_bytes(buffer[place : place + DUE_BYTES], "big")
            if not since_ns <= due_ns <= now_ns:
                continue
            weight = min(step, count - number)
            self.due_times.record(now_ns - due_ns, weight)
            if self._sent_too:
                sent_ns = STAMP.unpack_from(buffer, place)[1]
                if due_ns <= sent_ns <= now_ns:
                    self.sent_times.record(now_ns - sent_ns, weight)
                    self.late_times.record(sent_ns - due_ns, weight)


class Receiver:
    """Receive and ack messages until told to stop. Invariant: no delivery above the quota is acked or counted."""

    def __init__(
        self, peer: PeerSocket, demand: ReceiverPace, latencies: LatencyRecorder, quota: DeliveryQuota
    ) -> None:
        self.peer = peer
        self.last_ns = 0
        self.delivered = 0
        self._socket = peer.socket
        self._demand = demand
        self._latencies = latencies
        self._quota = quota
        self.scanner = peer.scanner(on_bodies=latencies.record)
        self._out = b""
        self.acked = 0
        self._start_ns = 0
        self._resume_ns = 0

    def start(self, at_ns: int) -> None:
        """Start the schedule, and count the deliveries that arrived together with basic.consume-ok."""
        self._start_ns = at_ns
        self._socket.setblocking(False)
        del self.peer.received[: self._scan(self.peer.received, len(self.peer.received))]

    def tally(self) -> RunTally:
        body_bytes = self.scanner.body_bytes * self.delivered // (self.scanner.deliveries or 1)
        return RunTally(delivered=self.delivered, acked=self.acked, deliver_bytes=body_bytes)

    def interest(self, now_ns: int) -> int:
        """Return the selector events to wait for; EVENT_READ only once the rate permits it."""
        read = EVENT_READ if self._resume_ns <= now_ns else 0
        return read | EVENT_WRITE if self._out else read

    def wakes_ns(self) -> int:
        """Return when reading may resume, or NEVER_NS if no timer is needed."""
        return self._resume_ns or NEVER_NS

    def react(self, events: int, now_ns: int) -> None:
        """Perform the reads and writes that have become possible. Raises: Refusal, BrokenStream, OSError."""
        if events & EVENT_WRITE:
            self._out = send_some(self._socket, self._out)
        if events & EVENT_READ:
            self._pull()
        elif self._resume_ns <= now_ns:
            self._resume_ns = 0

    def _pull(self) -> None:
        read_max_bytes = _SLOW_READ_BYTES if self._demand.per_s else BUFFER_BYTES // 2
        while self.peer.scan(self._scan, "consumer", read_max_bytes):
            if not isinstance(self._socket, ssl.SSLSocket) or not self._socket.pending():
                return

    def finish(self, limit_s: float) -> None:
        """Ack all counted deliveries. Raises: OSError."""
        self._socket.settimeout(limit_s)
        if self._demand.ack_every and self.delivered > self.acked:
            self._out += wire.basic_ack(self.peer.channel, self.delivered, multiple=True)
            self.acked = self.delivered
        self._socket.sendall(self._out)
        self._out = b""

    def _scan(self, buffer: bytearray, end: int) -> int:
        """Count and ack the deliveries in `buffer[:end]`, and return the length of its complete frames in bytes."""
        latencies, scanner = self._latencies, self.scanner
        before = scanner.deliveries
        latencies.now_ns = time.monotonic_ns()
        done = scanner.scan(buffer, end)
        if scanner.deliveries == before:
            return done
        self.last_ns = latencies.now_ns
        self.delivered += self._quota.take(scanner.deliveries - before)
        every = self._demand.ack_every
        if every and self.delivered - self.acked >= every:
            self._ack(self.delivered - self.delivered % every)
        if self._demand.per_s:
            self._resume_ns = self._start_ns + int(self.delivered / self._demand.per_s * 1e9)
        return done

    def _ack(self, upto: int) -> None:
        """Ack in steps of the configured size, as a client that counts deliveries would, but in one write."""
        step, channel = self._demand.ack_every, self.peer.channel
        tags = range(self.acked + step, upto + 1, step)
        multiple = step > 1
        self._out += b"".join([wire.basic_ack(channel, tag, multiple=multiple) for tag in tags])
        self.acked = upto
        self._out = send_some(self._socket, self._out)
