"""Pairs of connections that send one message to and fro: each waits for the other's, which rules out batching."""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from selectors import EVENT_READ, EVENT_WRITE
from typing import Final

from broker.perf import wire
from broker.perf.crew import CrewPipe
from broker.perf.faults import Refusal
from broker.perf.histogram import Histogram
from broker.perf.parts import drive, leave
from broker.perf.peer import Address, PeerConnection
from broker.perf.receiver import DeliveryQuota, Watch
from broker.perf.scanner import Scanner
from broker.perf.sender import NEVER_NS
from broker.perf.spool import Material, Spool
from broker.perf.tally import RunTally
from broker.perf.wire import CONSUME_CHANNEL, CONSUMER_TAG, PUBLISH_CHANNEL

_END_NS: Final = 5_000_000_000  # for the messages in flight at the end of the run


@dataclass(frozen=True, slots=True)
class PairShare:
    """The pairs of one process: the two queues of each.

    Shapes: `messages` is the total of all its pairs, in both directions.
    """

    address: Address
    queues: tuple[tuple[str, str], ...]
    body_bytes: int
    persistent: bool
    messages: int | None


class PairSide:
    """One side of a pair: consumes its own queue, and answers into the other side's queue."""

    __slots__ = (
        "_out",
        "_quota",
        "_scanner",
        "_socket",
        "_spool",
        "_tail",
        "_view",
        "_watch",
        "peer",
        "received",
        "sent",
    )

    def __init__(self, peer: PeerConnection, spool: Spool, watch: Watch, quota: DeliveryQuota) -> None:
        self.peer = peer
        self.received = 0
        self.sent = 0
        self._quota = quota
        self._socket = peer.socket
        self._spool = spool
        self._view = memoryview(spool.buffer)[: spool.stride]
        self._watch = watch
        self._scanner = Scanner(watch=watch.look)
        self._tail = bytes(peer.received)
        self._out = self._view[:0]

    def interest(self, now_ns: int) -> int:
        """Return the selector events to wait for."""
        return EVENT_READ | EVENT_WRITE if self._out else EVENT_READ

    def wakes_ns(self) -> int:
        """Return NEVER_NS: a side has no timer."""
        return NEVER_NS

    def serve(self, now_ns: int) -> None:
        """Send the message, unless the limit is reached.

        Raises: OSError.
        """
        if not self._quota.take(1):
            return
        self._spool.stamp_all(0, self._spool.stride, now_ns)
        self._out = self._view
        self.sent += 1
        self._push()

    def react(self, events: int, now_ns: int) -> None:
        """Read the received messages and answer them.

        Raises: Refusal, BrokenStream, OSError.
        """
        if events & EVENT_WRITE:
            self._push()
        if not events & EVENT_READ:
            return
        room, fill = self._watch.room, len(self._tail)
        room[:fill] = self._tail
        try:
            count = self._socket.recv_into(memoryview(room)[fill:])
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        if not count:
            raise Refusal("the broker closed a connection of a pair")
        self._watch.now_ns = time.monotonic_ns()
        done = self._scanner.scan(room, fill + count)
        self._tail = bytes(room[done : fill + count])
        if self._scanner.deliveries > self.received:
            self.received = self._scanner.deliveries
            self.serve(time.monotonic_ns())

    def _push(self) -> None:
        try:
            self._out = self._out[self._socket.send(self._out) :]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return


class Pairs:
    """The pairs of one process.

    Invariant: each pair has one message in flight.
    """

    def __init__(self, share: PairShare) -> None:
        """Connect both sides of each pair.

        Raises: Refusal, OSError.
        """
        self.watch = Watch(share.body_bytes)
        self._quota = DeliveryQuota(share.messages)
        self._stop_ns = 0
        self.members: list[PairSide] = []
        for here, there in share.queues:
            for own, other in ((here, there), (there, here)):
                self.members.append(self._side(share, own, other))

    def _side(self, share: PairShare, own: str, other: str) -> PairSide:
        peer = PeerConnection(share.address, CONSUME_CHANNEL)
        peer.call(wire.method(PUBLISH_CHANNEL, wire.CHANNEL_OPEN, b"\x00"), wire.CHANNEL_OPEN_OK)
        peer.consume(own, CONSUMER_TAG, auto_ack=True, prefetch=0)
        peer.socket.setblocking(False)
        material = Material("", (other,), share.body_bytes, persistent=share.persistent)
        return PairSide(peer, Spool(material, 0, 1), self.watch, self._quota)

    def start(self, at_ns: int) -> None:
        """Let the first side of each pair send."""
        self.watch.start(at_ns)
        for side in self.members[::2]:
            side.serve(time.monotonic_ns())

    def stop(self, now_ns: int) -> None:
        """Stop answering."""
        self._stop_ns = self._stop_ns or now_ns
        self._quota.left = 0

    def finished(self, now_ns: int) -> bool:
        """Return whether no message is in flight, or the wait for the last ones has timed out."""
        if self._quota.left:
            return False
        self.stop(now_ns)
        under_way = sum(side.sent - side.received for side in self.members)
        return not under_way or now_ns - self._stop_ns > _END_NS

    def tally(self) -> RunTally:
        """Return the counts so far."""
        return RunTally(
            published=sum(side.sent for side in self.members), delivered=sum(side.received for side in self.members)
        )

    def histograms(self) -> dict[str, Histogram]:
        """Return the one-way latencies."""
        return self.watch.histograms()


def pair_part(share: PairShare, line: CrewPipe, interval_ns: int) -> None:
    """Run a process of pairs."""
    crowd = Pairs(share)
    figures = drive(line, crowd, interval_ns)
    leave(line, crowd, figures | {"ended_ns": time.monotonic_ns()})
