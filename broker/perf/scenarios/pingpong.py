"""Ping-pong: pairs of clients that send one message back and forth, each waiting for the other's: no batching."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from broker.perf import wire
from broker.perf.conductor import stage, tasks
from broker.perf.flags import add, add_scenario, add_switch, add_time, count, processes_of, seconds_of, size
from broker.perf.outcome import RunTally
from broker.perf.parts import Consumers, Load, Share
from broker.perf.peer import PeerConnection, send_some
from broker.perf.progress import RunProgress
from broker.perf.receiver import DeliveryQuota, Receiver, ReceiverPace, Watch
from broker.perf.result import Result
from broker.perf.spool import STAMP_BYTES, Material, Spool
from broker.perf.topology import RunTopology, numbered, own_name
from broker.perf.wire import CONSUME_CHANNEL, CONSUMER_TAG, PUBLISH_CHANNEL

_PAIRS: Final = 8
_END_NS: Final = 5_000_000_000  # for the messages in flight at the end of the run


def add_pingpong(commands: Any) -> None:
    """Add the scenario's parser."""
    parser = add_scenario(commands, "pingpong", ", one in flight in each pair, unconfirmed")
    load = parser.add_argument_group("load")
    add(load, "-x --pairs", "N", count, f"number of pairs, default {_PAIRS}", _PAIRS)
    add(load, "-s --size", "SIZE", size, f"size of a body, default {STAMP_BYTES} bytes", STAMP_BYTES)
    add(load, "-C --pmessages", "N", count, "stop after N messages, both ways")
    add_switch(load, "--persistent", "publish persistent messages")
    add(load, "--processes", "N", count, "number of processes (default one per core, at most 4)")
    add_time(load)


def run_pingpong(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Run the scenario. Raises: BadOptions, Fault, RunFailed, OSError."""
    queues = numbered(own_name(), 2 * options.pairs)
    load = Load(
        address=options.uri,
        material=Material("", tuple(queues), options.size, persistent=options.persistent),
        producers=options.pairs,
        queues=(),
        demand=ReceiverPace(0, options.size),
        messages=options.pmessages,
        seconds=seconds_of(options),
        interval_s=options.interval,
        processes=processes_of(options),
    )
    with stage(options, RunTopology(tuple(queues)), progress) as here:
        outcome = here.run(load, tasks("pairs", Pairs, load.publish_shares()))
        outcome.deliver_s = outcome.publish_s
        return here.result(outcome)


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

    def tally(self) -> RunTally:
        """Return the counts so far."""
        return super().tally()._replace(published=self.sent)

    def react(self, events: int, now_ns: int) -> None:
        """Read the received message and answer it. Raises: Refusal, BrokenStream, OSError."""
        before = self.delivered
        super().react(events, now_ns)
        if self.delivered > before:
            self.serve()


class Pairs(Consumers):
    """The pairs of one process. Invariant: each pair has one message in flight."""

    members: Sequence[PairSide]

    def _limit(self, share: Share) -> int | None:
        limits = [share.load.pace(number).messages for number in share.numbers]
        return None if share.load.messages is None else sum(filter(None, limits))

    def _connect(self, load: Load, number: int) -> Iterator[PairSide]:
        """Yield the sides of a pair, each connected to its queue."""
        here, there = load.material.keys[2 * number : 2 * number + 2]
        for own, other in ((here, there), (there, here)):
            peer = PeerConnection(load.address, CONSUME_CHANNEL)
            peer.call(wire.method(PUBLISH_CHANNEL, wire.CHANNEL_OPEN, b"\x00"), wire.CHANNEL_OPEN_OK)
            peer.consume(own, CONSUMER_TAG, auto_ack=True, prefetch=0)
            yield PairSide(peer, Spool(replace(load.material, keys=(other,)), 0, 1), self._watch, self._quota)

    def start(self, at_ns: int) -> None:
        """Let the first side of each pair send."""
        super().start(at_ns)
        for side in self.members[::2]:
            side.serve()

    def stop(self, now_ns: int) -> None:
        """Stop answering."""
        super().stop(now_ns)
        self._quota.left = 0

    def finished(self, now_ns: int) -> bool:
        """Return whether no message is in flight, or the wait for the last ones has timed out."""
        if self._quota.left:
            return False
        self.stop(now_ns)
        total = self.tally()
        return total.published <= total.delivered or now_ns - self.stop_ns > _END_NS
