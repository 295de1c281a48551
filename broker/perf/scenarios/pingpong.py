"""Ping-pong: pairs of clients that send one message back and forth, each waiting for the other's: no batching."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any, Final

from broker.perf import wire
from broker.perf.conductor import stage, tasks
from broker.perf.flags import add, add_scenario, add_switch, add_time, count, processes_of, seconds_of, size
from broker.perf.histogram import Histogram
from broker.perf.outcome import RunTally
from broker.perf.parts import Load
from broker.perf.peer import Address, PeerConnection, send_some
from broker.perf.progress import RunProgress
from broker.perf.receiver import DeliveryQuota, Receiver, ReceiverPace, Watch
from broker.perf.result import Result
from broker.perf.scenarios import SCENARIOS
from broker.perf.spool import STAMP_BYTES, Material, Spool
from broker.perf.topology import RunTopology, numbered, own_name
from broker.perf.wire import CONSUME_CHANNEL, CONSUMER_TAG, PUBLISH_CHANNEL

_PAIRS: Final = 8
_SECONDS: Final = 10.0
_END_NS: Final = 5_000_000_000  # for the messages in flight at the end of the run


def add_pingpong(commands: Any) -> None:
    """Add the scenario's parser."""
    parser = add_scenario(commands, "pingpong", f"{SCENARIOS['pingpong']}, one in flight in each pair, unconfirmed")
    load = parser.add_argument_group("load")
    add(load, "-x --pairs", "N", count, f"number of pairs, default {_PAIRS}", _PAIRS)
    add(load, "-s --size", "SIZE", size, f"size of a body, default {STAMP_BYTES} bytes", STAMP_BYTES)
    add(load, "-C --pmessages", "N", count, "stop after N messages, both ways")
    add_switch(load, "--persistent", "publish persistent messages")
    add(load, "--processes", "N", count, "number of processes (default one per core, at most 4)")
    add_time(load, _SECONDS)
    parser.set_defaults(cmessages=None)


def run_pingpong(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Run the scenario. Raises: BadOptions, Fault, RunFailed, OSError."""
    queues = numbered(own_name(), 2 * options.pairs)
    load = Load(
        address=options.uri,
        material=Material("", tuple(queues), options.size, persistent=options.persistent),
        producers=0,
        queues=(),
        demand=ReceiverPace(0, options.size),
        messages=options.pmessages,
        seconds=seconds_of(options, _SECONDS),
        interval_s=options.interval,
    )
    with stage(options, RunTopology(tuple(queues)), progress) as here:
        outcome = here.run(load, tasks("pairs", Pairs, _shares(options, queues)))
        outcome.deliver_s = outcome.publish_s
        return here.result(outcome)


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


def _shares(options: argparse.Namespace, queues: list[str]) -> list[PairShare]:
    """Return the pairs of each process, and its share of the messages."""
    pairs, total = tuple(zip(queues[::2], queues[1::2], strict=True)), options.pmessages
    used = min(processes_of(options), len(pairs))
    if total is not None:
        used = min(used, max(1, total // len(pairs)))
    shares = []
    for part in range(used):
        messages = None if total is None else total // used + (part < total % used)
        shares.append(PairShare(options.uri, pairs[part::used], options.size, options.persistent, messages))
    return shares


class PairSide(Receiver):
    """One side of a pair: consumes its own queue, and answers into the other side's queue."""

    def __init__(self, peer: PeerConnection, spool: Spool, watch: Watch, quota: DeliveryQuota) -> None:
        super().__init__(peer, ReceiverPace(0, 0), watch, DeliveryQuota(None))
        self.sent = 0
        self._spool = spool
        self._messages = quota

    def serve(self) -> None:
        """Send the message, unless the limit is reached. Raises: OSError."""
        if self._messages.take(1):
            self._spool.stamp_all(0, self._spool.stride, time.monotonic_ns())
            self.sent += 1
            self._out = send_some(self._socket, bytes(self._spool.buffer[: self._spool.stride]))

    def react(self, events: int, now_ns: int) -> None:
        """Read the received message and answer it. Raises: Refusal, BrokenStream, OSError."""
        before = self.delivered
        super().react(events, now_ns)
        if self.delivered > before:
            self.serve()


class Pairs:
    """The pairs of one process. Invariant: each pair has one message in flight."""

    timers_per_s = 0.0

    def __init__(self, share: PairShare) -> None:
        """Connect both sides of each pair. Raises: Refusal, OSError."""
        self._watch = Watch(share.body_bytes)
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
        material = Material("", (other,), share.body_bytes, persistent=share.persistent)
        return PairSide(peer, Spool(material, 0, 1), self._watch, self._quota)

    def start(self, at_ns: int) -> None:
        """Let the first side of each pair send."""
        self._watch.start(at_ns)
        for side in self.members:
            side.start(at_ns)
        for side in self.members[::2]:
            side.serve()

    def stop(self, now_ns: int) -> None:
        """Stop answering."""
        self._stop_ns = self._stop_ns or now_ns
        self._quota.left = 0

    def finished(self, now_ns: int) -> bool:
        """Return whether no message is in flight, or the wait for the last ones has timed out."""
        if self._quota.left:
            return False
        self.stop(now_ns)
        under_way = sum(side.sent - side.delivered for side in self.members)
        return not under_way or now_ns - self._stop_ns > _END_NS

    def settle(self, fault: str) -> dict[str, Any]:
        """Return the end time: when the last message arrived, or the wait for it ended."""
        return {"ended_ns": time.monotonic_ns()}

    def tally(self) -> RunTally:
        """Return the counts so far."""
        sides = self.members
        return RunTally(published=sum(side.sent for side in sides), delivered=sum(side.delivered for side in sides))

    def histograms(self) -> dict[str, Histogram]:
        """Return the one-way latencies."""
        return self._watch.histograms()
