"""The parts of the generator's processes: a crowd of publishers, or one of consumers."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any, Final

from broker.perf.crew import CrewPipe
from broker.perf.descriptors import make_room
from broker.perf.driver import Crowd, Driver
from broker.perf.faults import Fault, Refusal
from broker.perf.histogram import Histogram
from broker.perf.load import ConsumeShare, PublishShare
from broker.perf.peer import PeerConnection
from broker.perf.receiver import DeliveryQuota, Receiver, Watch
from broker.perf.sender import NEVER_NS, Sender
from broker.perf.spool import CHUNK_BYTES, Spool
from broker.perf.tally import RunTally
from broker.perf.wire import CONSUME_CHANNEL, CONSUMER_TAG, FRAME_MAX_BYTES, FRAME_OVERHEAD_BYTES, PUBLISH_CHANNEL

CONNECTED: Final = "connected"
DONE: Final = "done"
LEAVE: Final = "leave"
LEFT: Final = "left"

_SPOOLS_BYTES: Final = 268_435_456  # of all publishers of a process
_FLUSH_NS: Final = 1_000_000_000  # to finish partly sent messages at the end of the run
_CONFIRM_NS: Final = 5_000_000_000  # to receive their confirms
_SETTLE_LIMIT_S: Final = 30.0
_ACK_LIMIT_S: Final = 5.0
_SLACK = Path("/proc/self/timerslack_ns")


class Publishers:
    """The publishing connections of one process."""

    def __init__(self, share: PublishShare) -> None:
        """Connect all publishers.

        Raises: Refusal, OSError.
        """
        self.confirm_times = Histogram()
        self._share = share
        self._stop_ns = 0
        count = len(share.paces)
        make_room(count)
        room_bytes = max(_SPOOLS_BYTES // count, CHUNK_BYTES // 16)
        self.members: list[Sender] = []
        for pace, first in zip(share.paces, share.first_keys, strict=True):
            peer = PeerConnection(share.address, PUBLISH_CHANNEL, unsent_bytes=share.unsent_bytes)
            _check_frame_max(peer, share.material.body_bytes)
            if pace.window:
                peer.select_confirms()
            spool = Spool(share.material, first, room_bytes if count == 1 else min(room_bytes, 4 * CHUNK_BYTES))
            self.members.append(
                Sender(peer, spool, pace, self.confirm_times, min(share.unsent_bytes or CHUNK_BYTES, CHUNK_BYTES))
            )

    def start(self, at_ns: int) -> None:
        """Start the schedules, each slightly later than the one before."""
        for member, stagger_s in zip(self.members, self._share.stagger_s, strict=True):
            member.start(at_ns + int(stagger_s * 1e9))

    def stop(self, now_ns: int) -> None:
        """Stop publishing."""
        self._stop_ns = self._stop_ns or now_ns
        for member in self.members:
            member.stop()

    def finished(self, now_ns: int) -> bool:
        """Return whether all messages are published and confirmed, or the wait for them has timed out."""
        if all(member.done for member in self.members):
            return True
        if not self._stop_ns:
            return False
        if any(member.blocked_for for member in self.members):
            return True
        flushing = any(not member.flushed for member in self.members)
        return now_ns - self._stop_ns > (_FLUSH_NS if flushing else _CONFIRM_NS)

    @property
    def unsettled(self) -> bool:
        """Return whether only a round trip can show that the broker has read everything and returned what it will."""
        material, whole = self._share.material, all(member.flushed for member in self.members)
        confirmed = any(pace.window for pace in self._share.paces)
        return whole and not material.relayed and not confirmed and (material.mandatory or not self._stop_ns)

    def settle(self) -> None:
        """Wait for the messages that the broker returns.

        Raises: Refusal, BrokenStream, OSError.
        """
        for member in self.members:
            member.settle(_SETTLE_LIMIT_S)

    def tally(self) -> RunTally:
        """Return the counts so far."""
        members = self.members
        return RunTally(
            published=sum(member.published for member in members),
            confirmed=sum(member.confirmed for member in members),
            nacked=sum(member.nacked for member in members),
            returned=sum(member.returned for member in members),
            blocked=sum(bool(member.blocked_for) for member in members),
        )

    def histograms(self) -> dict[str, Histogram]:
        """Return the confirm latencies."""
        return {"confirm_times": self.confirm_times}


class Consumers:
    """The consuming connections of one process."""

    def __init__(self, share: ConsumeShare) -> None:
        """Connect all consumers and start them.

        Raises: Refusal, OSError.
        """
        self.watch = Watch(share.demand.body_bytes)
        self._quota = DeliveryQuota(share.limit)
        self._stopped = False
        make_room(len(share.queues))
        self.members: list[Receiver] = []
        for queues in share.queues:
            peer = PeerConnection(share.address, CONSUME_CHANNEL)
            for number, queue in enumerate(queues):
                tag = CONSUMER_TAG if len(queues) == 1 else f"{CONSUMER_TAG}-{number:06d}"
                auto_ack = not share.demand.ack_every
                peer.consume(queue, tag, auto_ack=auto_ack, prefetch=0 if auto_ack else share.prefetch)
            self.members.append(Receiver(peer, share.demand, self.watch, self._quota))

    def start(self, at_ns: int) -> None:
        """Start counting."""
        self.watch.start(at_ns)
        for member in self.members:
            member.start(at_ns)

    def stop(self, now_ns: int) -> None:
        """Stop counting."""
        self._stopped = True

    def finished(self, now_ns: int) -> bool:
        """Return whether the consumers were told to stop, or have received their limit."""
        return self._stopped or not self._quota.left

    def settle(self) -> None:
        """Ack the remaining deliveries.

        Raises: OSError.
        """
        for member in self.members:
            member.finish(_ACK_LIMIT_S)

    @property
    def last_ns(self) -> int:
        """The time of the last delivery."""
        return max(member.last_ns for member in self.members)

    def tally(self) -> RunTally:
        """Return the counts so far."""
        members = self.members
        return RunTally(
            delivered=sum(member.delivered for member in members),
            acked=sum(member.acked for member in members),
            deliver_bytes=sum(member.body_bytes for member in members),
        )

    def histograms(self) -> dict[str, Histogram]:
        """Return the message latencies."""
        return self.watch.histograms()


def publish_part(share: PublishShare, line: CrewPipe, interval_ns: int) -> None:
    """Run a process of publishers."""
    crowd = Publishers(share)
    figures = drive(line, crowd, interval_ns, sum(pace.per_s or 0.0 for pace in share.paces))
    if crowd.unsettled and not figures["fault"]:
        figures |= _settle(crowd)
    blocked = next((member.blocked_for for member in crowd.members if member.blocked_for), "")
    leave(line, crowd, figures | {"ended_ns": time.monotonic_ns(), "blocked_for": blocked})


def _settle(crowd: Publishers) -> dict[str, Any]:
    """Return the figures after the broker has read everything."""
    try:
        crowd.settle()
    except TimeoutError:
        fault = f"the broker has not read everything {_SETTLE_LIMIT_S:.0f} s after the last message"
    except (Fault, OSError) as error:
        fault = str(error)
    else:
        fault = ""
    return {"tally": crowd.tally(), "fault": fault}


def consume_part(share: ConsumeShare, line: CrewPipe, interval_ns: int) -> None:
    """Run a process of consumers."""
    crowd = Consumers(share)
    figures = drive(line, crowd, interval_ns)
    if not figures["fault"]:
        crowd.settle()
        figures["tally"] = crowd.tally()
    leave(line, crowd, figures | {"ended_ns": crowd.last_ns})


def drive(line: CrewPipe, crowd: Crowd, interval_ns: int, timers_per_s: float = 0.0) -> dict[str, Any]:
    """Drive a crowd through its run and return the figures."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides when to stop
    if timers_per_s:
        _tighten_timers()
    driver = Driver(line, crowd, timers_per_s=timers_per_s)
    line.tell(CONNECTED)
    begin_ns, stop_ns = line.hear()
    return driver.run(begin_ns, interval_ns, stop_ns or NEVER_NS)


def leave(line: CrewPipe, crowd: Crowd, figures: dict[str, Any]) -> None:
    """Report, and close the connections only after the run has taken its last figure of the broker."""
    line.tell(DONE, figures)
    line.await_word(LEAVE)
    for member in crowd.members:
        member.peer.close()
    line.tell(LEFT)


def _check_frame_max(peer: PeerConnection, body_bytes: int) -> None:
    largest = min(body_bytes, FRAME_MAX_BYTES - FRAME_OVERHEAD_BYTES)
    if largest > peer.frame_max_bytes - FRAME_OVERHEAD_BYTES:
        raise Refusal(
            f"a body of {body_bytes} bytes needs larger frames than the broker's, of {peer.frame_max_bytes} bytes"
        )


def _tighten_timers() -> None:
    """Ask the kernel to wake this process on time, instead of up to 50 microseconds later."""
    try:
        _SLACK.write_text("1")
    except OSError:
        return  # not Linux; lateness is measured anyway
