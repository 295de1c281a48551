"""Many client connections in one process: publishers send repeatedly, consumers count and ack.

They are the senders and receivers of `slotmq perf`. One loop runs both, because each needs the other's current state:
to bound the lead, and to keep a backlog at a constant length.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from selectors import EVENT_READ, EVENT_WRITE

from bench.run import Figures
from broker.perf.faults import Stalled
from broker.perf.receiver import Receiver
from broker.perf.sender import Sender

UNBOUNDED = 1 << 40
BURST_S = 0.01
"""How often publishers with a schedule send all due messages: sending each by itself would load the machine."""
_STALL_S = 30.0
_IDLE_S = 0.05


@dataclass(frozen=True, slots=True)
class Moved:
    """The messages moved in a run, in all and by each publisher and consumer."""

    seconds: float
    sent_each: tuple[int, ...]
    confirmed_each: tuple[int, ...]
    got_each: tuple[int, ...]

    @property
    def messages(self) -> float:
        """The messages that went from publisher to consumer; one in flight at the start or the end counts half."""
        return (sum(self.sent_each) + sum(self.got_each)) / 2

    @property
    def rates(self) -> Figures:
        """The messages published and delivered per second."""
        published, delivered = sum(self.sent_each), sum(self.got_each)
        return {"published_per_s": published / self.seconds, "delivered_per_s": delivered / self.seconds}


class Herd:
    """Publishers and consumers that one loop drives.

    Units: `lead` is how many messages the publishers may be ahead of the consumers; each may exceed it by one write.
    `paced` is the prefetch of consumers that read and ack no more messages than were published, so that their queue
    keeps its length. With `burst_s`, publishers send once in that many seconds.
    """

    def __init__(
        self,
        sources: Sequence[Sender],
        sinks: Sequence[Receiver],
        *,
        lead: int = UNBOUNDED,
        paced: int = 0,
        burst_s: float = 0.0,
    ) -> None:
        self.published = self.delivered = self._ahead = 0
        self._sources: list[Sender] = []
        self._sinks: list[Receiver] = []
        self._lead = lead
        self._paced = paced
        self._burst_ns = int(burst_s * 1e9)
        self._next_ns = 0
        self._idle_s = burst_s / 2 or _IDLE_S
        self._events: dict[Sender | Receiver, int] = {}
        self._selector = selectors.DefaultSelector()
        members: list[Sender | Receiver] = [*sources, *sinks]
        for member in members:
            self.add(member)

    def add(self, member: Sender | Receiver, at_ns: int | None = None) -> None:
        """Add a publisher or consumer; messages that it has already received count.

        Units: `at_ns` of the monotonic clock is when a publisher with a schedule starts, by default now.
        """
        member.start(time.monotonic_ns() if at_ns is None else at_ns)
        if isinstance(member, Sender):
            self._sources.append(member)
        else:
            self._sinks.append(member)
            self.delivered += member.delivered
            self._ahead += member.delivered
        self._watch(member, EVENT_READ)

    @property
    def confirmed(self) -> int:
        return sum([source.confirmed for source in self._sources])

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> Moved:
        """Publish and consume for `seconds`, or until `until` is true, and return the moved messages.

        Raises: Stalled, Refusal, BrokenStream.
        """
        before = self._counts()
        begun = moved_at = time.monotonic()
        moved = -1
        while (now := time.monotonic()) < begun + seconds and not (until is not None and until()):
            self._step()
            if (total := self.published + self.delivered) != moved:
                moved, moved_at = total, now
            elif now > moved_at + _STALL_S:
                raise Stalled(f"{self.published} published, {self.delivered} delivered, and nothing moves")
        each = [
            tuple([one - other for one, other in zip(after, then, strict=True)])
            for after, then in zip(self._counts(), before, strict=True)
        ]
        return Moved(time.monotonic() - begun, *each)

    def reach(self, limit_s: float, condition: Callable[[], bool], otherwise: str) -> None:
        """Publish and consume until a condition is true. Raises: Stalled with the text `otherwise` after the limit."""
        self.run(limit_s, condition)
        if not condition():
            raise Stalled(f"{otherwise} within {limit_s:.0f} s")

    def _counts(self) -> tuple[list[int], list[int], list[int]]:
        """Return the messages that each publisher has sent, those confirmed to it, and those of each consumer."""
        sources = self._sources
        return (
            [source.published for source in sources],
            [source.confirmed for source in sources],
            [sink.delivered for sink in self._sinks],
        )

    def close(self) -> None:
        """Close every socket without a closing handshake: brokers must tolerate that."""
        self._selector.close()
        for member in self._events:
            member.peer.socket.close()

    def _step(self) -> None:
        now_ns = time.monotonic_ns()
        sends = now_ns >= self._next_ns and self.published - self.delivered + self._ahead < self._lead
        if sends:
            self._next_ns = now_ns + self._burst_ns
        for source in self._sources:
            self._watch(source, source.interest(now_ns) if sends or not source.flushed else EVENT_READ)
        if self._paced:
            events = EVENT_WRITE if self.delivered + self._paced > self.published else EVENT_READ | EVENT_WRITE
            for sink in self._sinks:
                self._watch(sink, sink.interest(now_ns) & events)
        for key, events in self._selector.select(self._idle_s):
            member = key.data
            if isinstance(member, Receiver):
                self.delivered -= member.delivered
                member.react(events, now_ns)
                self.delivered += member.delivered
                self._watch(member, member.interest(now_ns))
                continue
            if events & EVENT_READ:
                member.pull(now_ns)
            if events & EVENT_WRITE:
                self.published -= member.published
                member.push(now_ns)
                self.published += member.published

    def _watch(self, member: Sender | Receiver, events: int) -> None:
        """Register for these events of a member; 0 unregisters it."""
        before = self._events.get(member, 0)
        if events == before:
            return
        socket = member.peer.socket
        if not events:
            self._selector.unregister(socket)
        elif before:
            self._selector.modify(socket, events, member)
        else:
            self._selector.register(socket, events, member)
        self._events[member] = events
