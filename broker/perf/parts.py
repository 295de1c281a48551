"""The load of a run, and the publishers or consumers that one process of the generator runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.perf.faults import Fault, Refusal
from broker.perf.histogram import Histogram
from broker.perf.machine import raise_file_limit
from broker.perf.peer import Address, PeerConnection, PeerSocket, RelayPeer
from broker.perf.process_group import ConnectionGroup
from broker.perf.receiver import DeliveryQuota, LatencyRecorder, Receiver, ReceiverPace
from broker.perf.sender import Sender, SenderPace
from broker.perf.spool import CHUNK_BYTES, Material, Spool
from broker.perf.wire import CONSUME_CHANNEL, CONSUMER_TAG, FRAME_MAX_BYTES, FRAME_OVERHEAD_BYTES, PUBLISH_CHANNEL

_SPOOLS_BYTES: Final = 268_435_456  # for the spools of all publishers of a process
_NO_CONFIRMS: Final = 1 << 62  # a stride in bytes that no publisher ever sends, so the relay confirms nothing
_FLUSH_NS: Final = 1_000_000_000  # to finish sending partly sent messages at the end of the run
_CONFIRM_NS: Final = 5_000_000_000  # to receive the last confirms
_SETTLE_LIMIT_S: Final = 30.0
_ACK_LIMIT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Share:
    """The publishers, or the consumers, that one process runs."""

    load: Load
    numbers: range


class Publishers(ConnectionGroup):
    """The publishing connections of one process."""

    def __init__(self, share: Share) -> None:
        """Connect all publishers. Raises: Fault, OSError."""
        self.timers_per_s = (share.load.per_s or 0.0) * len(share.numbers)
        self._confirm_times = Histogram()
        self.times = {"confirm_times": self._confirm_times}
        self._share = share
        count = len(share.numbers)
        raise_file_limit(count)
        room_bytes = max(_SPOOLS_BYTES // count, CHUNK_BYTES // 16)
        if count > 1:
            room_bytes = min(room_bytes, 4 * CHUNK_BYTES)
        self.members: list[Sender] = [self._member(number, room_bytes) for number in share.numbers]

    def _member(self, number: int, room_bytes: int) -> Sender:
        load = self._share.load
        spool = Spool(load.material, load.first_key(number), room_bytes)
        return Sender(_publisher(load, spool), spool, load.pace(number), self._confirm_times, load.unsent_bytes)

    def start(self, at_ns: int) -> None:
        """Start the publishers; at a fixed rate, each starts slightly later than the previous one."""
        for number, member in zip(self._share.numbers, self.members, strict=True):
            member.start(at_ns + int(self._share.load.stagger_s(number) * 1e9))

    def stop(self, now_ns: int) -> None:
        super().stop(now_ns)
        for member in self.members:
            member.stop()

    def finished(self, now_ns: int) -> bool:
        """Return whether all messages are published and confirmed, or the wait for them, after a stop, is over."""
        if all(member.done for member in self.members):
            return True
        if not self.stop_ns:
            return False
        if any(member.scanner.blocked_for for member in self.members):
            return True
        flushing = any(not member.flushed for member in self.members)
        return now_ns - self.stop_ns > (_FLUSH_NS if flushing else _CONFIRM_NS)

    def settle(self, fault: str) -> dict[str, Any]:
        """Return the final figures; if needed, first wait until the broker has read everything and sent all returns."""
        figures: dict[str, Any] = {}
        try:
            if not fault and self._unsettled():
                for member in self.members:
                    member.settle(_SETTLE_LIMIT_S)
        except TimeoutError:
            figures["fault"] = f"the broker has not read everything {_SETTLE_LIMIT_S:.0f} s after the last message"
        except (Fault, OSError) as error:
            figures["fault"] = str(error)
        blocked_for = next(filter(None, (member.scanner.blocked_for for member in self.members)), "")
        return figures | {"tally": self.tally(), "blocked_for": blocked_for, "ended_ns": time.monotonic_ns()}

    def _unsettled(self) -> bool:
        """Return whether a round trip must show that all was read; after a stop, only mandatory messages need it."""
        load, whole = self._share.load, all(member.flushed for member in self.members)
        asked = load.material.mandatory or not self.stop_ns
        return whole and asked and not load.material.relayed and not load.window


def _publisher(load: Load, spool: Spool) -> PeerSocket:
    """Return the connection of a publisher. Raises: Refusal, OSError."""
    if load.material.relayed:
        return RelayPeer(load.address, spool.stride if load.window else _NO_CONFIRMS, load.unsent_bytes)
    peer = PeerConnection(load.address, PUBLISH_CHANNEL, unsent_bytes=load.unsent_bytes)
    body_bytes, most_bytes = load.material.body_bytes, peer.frame_max_bytes
    if min(body_bytes + FRAME_OVERHEAD_BYTES, FRAME_MAX_BYTES) > most_bytes:
        raise Refusal(f"a body of {body_bytes} bytes needs larger frames than the broker's, of {most_bytes} bytes")
    if load.window:
        peer.select_confirms()
    return peer


class Consumers(ConnectionGroup):
    """The consuming connections of one process."""

    def __init__(self, share: Share) -> None:
        """Connect all consumers and start them. Raises: Fault, OSError."""
        self._latencies = LatencyRecorder(share.load.demand.body_bytes)
        self.times = self._latencies.times
        self._quota = DeliveryQuota(share.load.deliveries)
        raise_file_limit(len(share.numbers))
        self.members: Sequence[Receiver] = [
            member for number in share.numbers for member in self._connect(share.load, number)
        ]

    def _connect(self, load: Load, consumer: int) -> Iterator[Receiver]:
        if load.material.relayed:
            yield Receiver(RelayPeer(load.address, 0), load.demand, self._latencies, self._quota)
            return
        peer, queues = PeerConnection(load.address, CONSUME_CHANNEL), load.queues[consumer]
        auto_ack = not load.demand.ack_every
        for number, queue in enumerate(queues):
            tag = CONSUMER_TAG if len(queues) == 1 else f"{CONSUMER_TAG}-{number:06d}"
            peer.consume(queue, tag, auto_ack=auto_ack, prefetch=0 if auto_ack else load.prefetch)
        yield Receiver(peer, load.demand, self._latencies, self._quota)

    def start(self, at_ns: int) -> None:
        self._latencies.start(at_ns)
        super().start(at_ns)

    def finished(self, now_ns: int) -> bool:
        """Return whether the consumers were told to stop or have used up the delivery quota."""
        return bool(self.stop_ns) or not self._quota.left

    def settle(self, fault: str) -> dict[str, Any]:
        """Ack the remaining deliveries, unless there was a fault, and return the final figures. Raises: OSError."""
        for member in self.members:
            if not fault:
                member.finish(_ACK_LIMIT_S)
        return {"tally": self.tally(), "ended_ns": max(member.last_ns for member in self.members)}


@dataclass(frozen=True, slots=True)
class Load:
    """The work of a run: what is published and consumed, on which broker, how fast and for how long.

    Shapes: `queues` lists the queues of each consumer; `messages` and `deliveries` limit all publishers and all
    consumers, None for no limit; `copies` is the number of queues that a message reaches, None if unknown; `ready` is
    the number of messages in the queues before the run; `unsent_bytes` limits what a publisher may have unsent in its
    kernel, 0 for the kernel's default; `publishing` and `consuming` connect the clients of one process.
    """

    address: Address
    material: Material
    producers: int
    queues: tuple[tuple[str, ...], ...]
    demand: ReceiverPace
    window: int = 0
    messages: int | None = None
    per_s: float | None = None
    prefetch: int = 0
    deliveries: int | None = None
    seconds: float | None = None
    interval_s: float = 1.0
    copies: int | None = 1
    ready: int = 0
    processes: int = 1
    unsent_bytes: int = 0
    publishing: Callable[[Share], ConnectionGroup] = Publishers
    consuming: Callable[[Share], ConnectionGroup] = Consumers

    def publish_shares(self) -> list[Share]:
        return self._shares(self.producers, self.processes)

    def consume_shares(self) -> list[Share]:
        """Return the share of each consuming process; a limit on deliveries requires a single process."""
        return self._shares(len(self.queues), 1 if self.deliveries is not None else self.processes)

    def pace(self, number: int) -> SenderPace:
        messages = self.messages
        if messages is not None:
            messages = messages // self.producers + (number < messages % self.producers)
        return SenderPace(self.window, messages, self.per_s)

    def first_key(self, number: int) -> int:
        """Return the index of a publisher's first routing key; the publishers are spread over the keys."""
        return number * len(self.material.keys) // self.producers

    def stagger_s(self, number: int) -> float:
        """Return a publisher's delay after the first one: the starts are spread over one period of the rate."""
        return number / self.producers / self.per_s if self.per_s else 0.0

    def _shares(self, count: int, processes: int) -> list[Share]:
        used = min(count, processes)
        return [Share(self, range(count * part // used, count * (part + 1) // used)) for part in range(used)]
