"""Many client connections in one process: publishers send repeatedly, consumers count and ack.

Both run in one process, because each needs the other's state at once: to bound the lead, and to keep a backlog at a
constant length.
"""

from __future__ import annotations

import select
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.perf import wire
from broker.perf.faults import Refusal, Stalled
from broker.perf.peer import PeerConnection
from broker.perf.scanner import Scanner, Watch
from broker.perf.spool import Spool

FULL_SPEED = 1 << 40
_CHUNK_BYTES = 65_536
_SOURCE_BUFFER_BYTES = 65_536
_SINK_BUFFER_BYTES = 1 << 20
_STALL_S = 30.0
_IDLE_S = 0.05


class _Member:
    """One non-blocking connection, and the counts of its input."""

    def __init__(self, peer: PeerConnection, buffer_bytes: int, watch: Watch | None = None) -> None:
        self.peer = peer
        self.socket = peer.socket
        self.scanner = Scanner(watch=watch)
        self._buffer = bytearray(buffer_bytes)
        self._fill = 0
        self._buffer[: len(peer.received)] = peer.received
        self._count(len(peer.received))  # received with the answer to the last call
        peer.received.clear()
        self.socket.setblocking(False)

    def read(self) -> None:
        """Count the received frames. Raises: Refusal, BrokenStream."""
        try:
            count = self.socket.recv_into(memoryview(self._buffer)[self._fill :])
        except BlockingIOError:
            return
        if not count:
            raise Refusal("the broker closed a connection")
        self._count(self._fill + count)

    def _count(self, end: int) -> None:
        done = self.scanner.scan(self._buffer, end)
        self._fill = end - done
        self._buffer[: self._fill] = self._buffer[done:end]


class Source(_Member):
    """Publishes a spool repeatedly within a window of unconfirmed messages."""

    def __init__(self, peer: PeerConnection, spool: Spool, window: int = FULL_SPEED) -> None:
        super().__init__(peer, _SOURCE_BUFFER_BYTES)
        self._spool = spool
        self._window = window
        self._chunk = _CHUNK_BYTES // spool.stride or 1
        self._at = 0
        self._pending = memoryview(b"")
        self.limit = FULL_SPEED  # of messages in all
        self.sent = 0

    @property
    def pending(self) -> bool:
        """Return whether bytes wait for the socket."""
        return bool(self._pending)

    def stop(self) -> None:
        """Publish no more."""
        self.limit = self.sent

    def take(self, room: int) -> int:
        """Make the next messages pending, as many as window, `room`, chunk and spool allow; return their number."""
        spool, at = self._spool, self._at
        room = min(room, self._window - self.sent + self.scanner.confirms.count, self._chunk)
        room = min(room, self.limit - self.sent)
        if self._pending or room <= 0:
            return 0
        if not at and self.sent:
            spool.renew()
        stop = min(at + room * spool.stride, spool.length)
        self._pending = memoryview(spool.buffer)[at:stop]
        count = (stop - at) // spool.stride
        self.sent += count
        self._at = stop % spool.length
        return count

    def write(self) -> None:
        """Send pending bytes, as far as the socket accepts them."""
        try:
            self._pending = self._pending[self.socket.send(self._pending) :]
        except BlockingIOError:
            return


class Sink(_Member):
    """Counts deliveries and acks them `multiple`, in steps; `ack_every` 0 means auto-ack."""

    def __init__(
        self,
        peer: PeerConnection,
        ack_every: int,
        *,
        buffer_bytes: int = _SINK_BUFFER_BYTES,
        watch: Watch | None = None,
    ) -> None:
        """`watch` sees the bodies, as a scanner's does."""
        super().__init__(peer, buffer_bytes, watch)
        self._ack_every = ack_every
        self._acked = 0
        self._poller = select.poll()
        self._poller.register(self.socket, select.POLLOUT)

    def ack(self, most: int) -> None:
        """Ack deliveries in whole steps, up to `most` in all."""
        step = self._ack_every
        upto = min(self.scanner.deliveries, most) // step * step if step else 0
        if upto <= self._acked:
            return
        tags = range(self._acked + step, upto + 1, step)
        frames = b"".join(wire.basic_ack(self.peer.channel, tag, multiple=True) for tag in tags)
        sent = 0
        while sent < len(frames):  # acks are few: a broker that reads none of them for long is detected as a stall
            try:
                sent += self.socket.send(frames[sent:])
            except BlockingIOError:
                self._poller.poll(_STALL_S * 1000)
        self._acked = upto


@dataclass(frozen=True, slots=True)
class Moved:
    """The messages moved in a run, in all and by each publisher and consumer."""

    seconds: float
    sent_each: tuple[int, ...]
    confirmed_each: tuple[int, ...]
    got_each: tuple[int, ...]

    @property
    def messages(self) -> float:
        """Return how many messages went all the way: those in flight at either end count half."""
        return (sum(self.sent_each) + sum(self.got_each)) / 2


class Herd:
    """Publishers and consumers that one loop drives.

    Units: `lead` is how many messages the publishers may be ahead of the consumers. `paced` consumers ack no more than
    was published, so that their queue keeps its length. A quiet herd looks for due messages every `idle_s`.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        sinks: Sequence[Sink],
        *,
        lead: int = FULL_SPEED,
        paced: bool = False,
        idle_s: float = _IDLE_S,
    ) -> None:
        self.published = 0
        self.delivered = self._ahead = sum([sink.scanner.deliveries for sink in sinks])
        self._sources = sources
        self._sinks = sinks
        self._lead = lead
        self._paced = paced
        self._idle_s = idle_s
        self._writing: set[Source] = set()
        self._selector = selectors.DefaultSelector()
        for member in (*sources, *sinks):
            self._selector.register(member.socket, selectors.EVENT_READ, member)

    @property
    def confirmed(self) -> int:
        """Return how many messages the broker has confirmed."""
        return sum([source.scanner.confirms.count for source in self._sources])

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> Moved:
        """Publish and consume for `seconds`, or until `until` is true, and return the moved messages.

        Raises: Stalled, Refusal, BrokenStream.
        """
        sent = [source.sent for source in self._sources]
        confirmed = [source.scanner.confirms.count for source in self._sources]
        got = [sink.scanner.deliveries for sink in self._sinks]
        begun = moved_at = time.monotonic()
        moved = -1
        while (now := time.monotonic()) < begun + seconds and not (until is not None and until()):
            self._step()
            if (total := self.published + self.delivered) != moved:
                moved, moved_at = total, now
            elif now > moved_at + _STALL_S:
                raise Stalled(f"{self.published} published, {self.delivered} delivered, and nothing moves")
        return Moved(
            time.monotonic() - begun,
            tuple([source.sent - before for source, before in zip(self._sources, sent, strict=True)]),
            tuple([one.scanner.confirms.count - before for one, before in zip(self._sources, confirmed, strict=True)]),
            tuple([sink.scanner.deliveries - before for sink, before in zip(self._sinks, got, strict=True)]),
        )

    def add(self, sink: Sink) -> None:
        """Let another consumer join, with the messages that it has received already."""
        self._sinks = (*self._sinks, sink)
        self.delivered += sink.scanner.deliveries
        self._ahead += sink.scanner.deliveries
        self._selector.register(sink.socket, selectors.EVENT_READ, sink)

    def close(self) -> None:
        """Close every socket without a closing handshake: brokers must tolerate that."""
        self._selector.close()
        for member in (*self._sources, *self._sinks):
            member.socket.close()

    def _step(self) -> None:
        room = self._lead - self.published + self.delivered - self._ahead
        if room > 0 and self._sources:
            share = max(1, room // len(self._sources))
            for source in self._sources:
                self.published += source.take(share)
                self._watch(source)
        if self._paced:
            for sink in self._sinks:
                sink.ack(self.published)
        for key, events in self._selector.select(self._idle_s):
            member = key.data
            if events & selectors.EVENT_READ:
                self._read(member)
            if events & selectors.EVENT_WRITE:
                member.write()
                self._watch(member)

    def _read(self, member: Source | Sink) -> None:
        before = member.scanner.deliveries
        member.read()
        if isinstance(member, Sink):
            self.delivered += member.scanner.deliveries - before
            if not self._paced:
                member.ack(member.scanner.deliveries)

    def _watch(self, source: Source) -> None:
        if source.pending != (source in self._writing):
            (self._writing.add if source.pending else self._writing.discard)(source)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if source.pending else 0)
            self._selector.modify(source.socket, events, source)
