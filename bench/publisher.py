"""Publishes a tape at full speed from one connection, within a window of unconfirmed messages or a bounded lead."""

from __future__ import annotations

import select
import time
from dataclasses import dataclass

from bench.counters import Counters
from bench.tape import Tape
from broker.perf.faults import Refusal, Stalled
from broker.perf.peer import PeerConnection
from broker.perf.scanner import Scanner

_CHUNK_BYTES = 262_144
_BUFFER_BYTES = 262_144
_IDLE_MS = 200
_LEAD_PAUSE_MS = 1  # no frame reports the consumer's progress to the publisher


@dataclass(frozen=True, slots=True)
class PublisherPace:
    """The pace of a publisher; `window` 0 means no confirms, `lead` 0 no bound on the lead over the consumer."""

    window: int
    lead: int
    stall_s: float


class LoadPublisher:
    """Sends messages of a tape repeatedly, and counts their confirms."""

    def __init__(self, peer: PeerConnection, tape: Tape, pace: PublisherPace, counters: Counters) -> None:
        self._socket = peer.socket
        self._tape = memoryview(tape.buffer)
        self._stride = tape.stride_bytes
        self._pace = pace
        self._counters = counters
        self._scanner = Scanner()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._fill = 0
        self._pending = self._tape[:0]
        self._at = 0  # the offset of the next message on the tape
        self._sent = 0
        self._most_ahead = 0
        self._limit = 0
        self._poller = select.poll()

    @property
    def confirm_frames(self) -> int:
        """Return the number of frames that carried the confirms."""
        return self._scanner.confirms.frames

    @property
    def blocked(self) -> int:
        """Return how often the broker sent connection.blocked."""
        return self._scanner.blocked

    @property
    def sent(self) -> int:
        """Return the number of messages published so far."""
        return self._sent

    @property
    def most_ahead(self) -> int:
        """Return the largest number of messages that were sent and not yet both delivered and confirmed."""
        return self._most_ahead

    def warm_up(self, messages: int, seconds: float) -> None:
        """Publish up to this many messages, which do not count, and wait until the consumer has them.

        Raises: Stalled, Refusal, BrokenStream.
        """
        self.run(messages, seconds)
        stall_at = time.monotonic() + self._pace.stall_s
        while self._counters.delivered < self._sent:
            if time.monotonic() > stall_at:
                raise Stalled(f"warm-up: {self._counters.delivered} of {self._sent} delivered")
            time.sleep(_LEAD_PAUSE_MS / 1000)

    def run(self, messages: int, seconds: float) -> tuple[float, float]:
        """Publish until the count or the time is reached and all is confirmed; return the start and end times.

        Units: seconds of the monotonic clock, which all processes share.
        Raises: Stalled, Refusal, BrokenStream.
        """
        window = self._pace.window
        self._limit = self._sent + messages
        self._socket.setblocking(False)
        begun = time.monotonic()
        stop_at, stall_at = begun + seconds, begun + self._pace.stall_s
        while True:
            now = time.monotonic()
            if now > stop_at and self._limit > self._sent:
                self._limit = self._sent
            if now > stall_at:
                raise Stalled(f"publisher: {self._sent} sent, {self._scanner.confirms.count} confirmed")
            if not self._pending:
                if self._sent >= self._limit and (not window or self._scanner.confirms.count >= self._sent):
                    break
                self._take()
            self._exchange(_IDLE_MS if window or self._pending else _LEAD_PAUSE_MS)
        return begun, time.monotonic()

    def _take(self) -> None:
        """Make the next messages pending: as many as window, lead, chunk and tape allow."""
        pace = self._pace
        room = self._limit - self._sent
        if pace.window:
            room = min(room, pace.window - self._sent + self._scanner.confirms.count)
        if pace.lead:
            room = min(room, pace.lead - self._sent + self._counters.delivered)
        if room <= 0:
            return
        stop = min(self._at + min(room, _CHUNK_BYTES // self._stride or 1) * self._stride, len(self._tape))
        self._pending = self._tape[self._at : stop]
        self._sent += (stop - self._at) // self._stride
        self._counters.sent = self._sent
        settled = min(self._counters.delivered, self._scanner.confirms.count if pace.window else self._sent)
        self._most_ahead = max(self._most_ahead, self._sent - settled)
        self._at = stop % len(self._tape)

    def _exchange(self, limit_ms: int) -> None:
        """Write pending and read received bytes, waiting for whichever is possible first."""
        wanted = select.POLLIN | (select.POLLOUT if self._pending else 0)
        self._poller.register(self._socket, wanted)
        events = self._poller.poll(limit_ms)
        event = events[0][1] if events else 0
        if event & select.POLLOUT:
            self._pending = self._pending[self._socket.send(self._pending) :]
        if event & (select.POLLIN | select.POLLHUP | select.POLLERR):
            self._read()

    def _read(self) -> None:
        count = self._socket.recv_into(memoryview(self._buffer)[self._fill :])
        if not count:
            raise Refusal("the broker closed the publisher's socket")
        end = self._fill + count
        done = self._scanner.scan(self._buffer, end)
        self._fill = end - done
        self._buffer[: self._fill] = self._buffer[done:end]
