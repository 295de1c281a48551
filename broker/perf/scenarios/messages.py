"""The scenarios that publish and consume: throughput, latency, fan-out, routing, backlog and ping-pong."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from broker.perf import flags, wire
from broker.perf.conductor import stage
from broker.perf.faults import BadOptions
from broker.perf.outcome import RunOutcome, RunTally, cost_figures, time_figures
from broker.perf.parts import Consumers, Load, Share
from broker.perf.peer import PeerConnection, send_some
from broker.perf.progress import RunProgress
from broker.perf.receiver import DeliveryQuota, LatencyRecorder, Receiver, ReceiverPace
from broker.perf.result import Figure, Result
from broker.perf.scenarios import SCENARIOS
from broker.perf.spool import DUE_BYTES, PASS_DIGITS, STAMP_BYTES, Material, Spool
from broker.perf.topology import RunTopology, add_addressing, addressing_of, numbered, own_name
from broker.perf.wire import CONSUME_CHANNEL, CONSUMER_TAG, PUBLISH_CHANNEL

_KEYS: Final = 10_000
_RATE: Final = 1000.0  # messages per second in `latency`
_MATCH_ALL: Final = ("fan.*.#", "fan.#", "*.*.*", "#")  # binding keys, used in rotation; each matches every key
_WINDOW: Final = 1000
_SEED: Final = 20_240_229
_BINDINGS_MAX: Final = 5_000_000  # keys with this number or a higher one match no binding
_END_NS: Final = 5_000_000_000  # to receive the messages of pingpong that are in flight at the end
_SHAPES: Final = ("route.{0}.*.*", "route.*.*.{0}", "*.{0}.#", "#.{0}")  # binding keys, used in rotation


def add_throughput(commands: Any) -> None:
    """Add the parser of throughput."""
    parser = flags.add_scenario(commands, "throughput", SCENARIOS["throughput"])
    flags.add_time(flags.add_load(parser))
    add_addressing(parser)


def run_throughput(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Run at full speed, or at the given rate. Raises: BadOptions, Fault, RunFailed, OSError."""
    topology, load = addressed(options)
    with stage(options, topology, progress) as here:
        return here.result(here.run(load, count_queued=True))


def addressed(options: argparse.Namespace) -> tuple[RunTopology, Load]:
    """Return the topology and the load that the options of throughput or latency describe. Raises: BadOptions."""
    flags.check_sides(options)
    topology, keys, copies = addressing_of(options)
    material = flags.material_of(options, topology.exchange, keys)
    return topology, flags.load_of(options, material, topology.queues, copies=copies)


def add_latency(commands: Any) -> None:
    """Add the parser of latency."""
    parser = flags.add_scenario(commands, "latency", f"{SCENARIOS['latency']}; default {_RATE:g} messages per second")
    flags.add_time(flags.add_load(parser))
    add_addressing(parser)
    parser.set_defaults(rate=_RATE)


def run_latency(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Publish at a steady rate, and measure the time of each message from when it was due.

    A publisher that waits for a slow broker sends late. Measured from the time of sending, its messages would look
    fast. So latency counts from when they were due (an open schedule); the lateness of sending is shown separately.

    Raises: BadOptions, Fault, RunFailed, OSError.
    """
    if options.size < DUE_BYTES:
        raise BadOptions(
            f"--size {options.size}: the body needs {DUE_BYTES} bytes for the time when the message is due"
        )
    flags.check_sides(options, both="latency needs a publisher and a consumer")
    topology, load = addressed(options)
    with stage(options, topology, progress) as here:
        outcome = here.run(load, count_queued=True)
        figures = time_figures("from_send", outcome.sent_times) | time_figures("sent_late", outcome.late_times)
        return here.result(outcome, figures)


def add_fanout(commands: Any) -> None:
    """Add the parser of fanout."""
    parser = flags.add_scenario(commands, "fanout", SCENARIOS["fanout"])
    load = flags.add_load(parser)
    flags.add(load, "--keys", "N", flags.count, "number of routing keys", _KEYS)
    flags.add_time(load)
    parser.set_defaults(consumers=50)


def run_fanout(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Publish each message to many queues, each with a consumer. Raises: BadOptions, Fault, RunFailed, OSError."""
    flags.check_sides(options, both="fanout needs a publisher and a consumer")
    own = own_name()
    queues = numbered(own, options.consumers)
    bindings = tuple((queue, _MATCH_ALL[number % len(_MATCH_ALL)]) for number, queue in enumerate(queues))
    topology = RunTopology(tuple(queues), own, bindings=bindings, arguments=dict(options.queue_args))
    keys = [f"fan.{number % 97:02d}.{number:08d}" for number in range(options.keys)]
    material = flags.material_of(options, own, keys)
    copies = None if options.queue_args else len(queues)
    load = flags.load_of(options, material, queues, copies=copies)
    with stage(options, topology, progress) as here:
        return here.result(here.run(load, count_queued=True))


def add_routing(commands: Any) -> None:
    """Add the parser of routing."""
    parser = flags.add_scenario(commands, "routing", SCENARIOS["routing"])
    load = flags.add_load(parser)
    bindings = flags.within(flags.count, 1, _BINDINGS_MAX, f"too many: at most {_BINDINGS_MAX}")
    flags.add(load, "--bindings", "N", bindings, "number of bindings", 10_000)
    flags.add(load, "--match", "SHARE", flags.share, "share of messages that match a binding", "1%")
    flags.add(load, "--queues", "N", flags.count, "number of bound queues", 10)
    flags.add_time(load)
    parser.set_defaults(confirm=_WINDOW)


def run_routing(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Add the bindings, then publish. Raises: BadOptions, Fault, RunFailed, OSError."""
    flags.check_sides(options)
    if not options.producers:
        raise BadOptions("routing needs a publisher")
    own = own_name()
    queues = numbered(own, options.queues)
    bindings = [(queues[number % len(queues)], binding_key(number)) for number in range(options.bindings)]
    topology = RunTopology(tuple(queues), own, arguments=dict(options.queue_args))
    material = flags.material_of(options, own, routing_keys(options.bindings, options.match), renewed=True)
    load = flags.load_of(options, material, queues)
    with stage(options, topology, progress) as here:
        before, begun_s = here.usage(), time.monotonic()
        topology.bind(here.control, bindings, progress)
        bind_s = time.monotonic() - begun_s
        figures = {
            "declare_bindings": Figure(bind_s, "s"),
            "bindings": Figure(len(bindings) / bind_s, "per_s"),
            **cost_figures(before, here.usage(), len(bindings), memory="memory_per_binding"),
        }
        return here.result(here.run(load), figures)


def binding_key(number: int) -> str:
    """Return the wildcard binding key number `number`; it matches only routing keys of that number."""
    return _SHAPES[number % len(_SHAPES)].format(f"{number:07d}")


def routing_keys(bindings: int, match: float) -> tuple[str, ...]:
    """Return keys in random order, of which the share `match` matches a binding."""
    draw = Random(_SEED)
    matching = round(_KEYS * match)
    numbers = [draw.randrange(bindings) for _ in range(matching)]
    numbers += [draw.randrange(_BINDINGS_MAX, 2 * _BINDINGS_MAX) for _ in range(_KEYS - matching)]
    draw.shuffle(numbers)
    return tuple(_key(number, draw) for number in numbers)


def _key(number: int, draw: Random) -> str:
    """Return a routing key with its number where the binding key of that number expects it."""
    words = [f"{number:07d}", PASS_DIGITS, f"{draw.randrange(_BINDINGS_MAX, 2 * _BINDINGS_MAX):07d}"]
    return ".".join(["route", *(words if number % len(_SHAPES) in (0, 2) else reversed(words))])


def add_backlog(commands: Any) -> None:
    """Add the parser of backlog."""
    parser = flags.add_scenario(commands, "backlog", f"{SCENARIOS['backlog']}; default 100k messages (-C), persistent")
    load = flags.add_load(parser)
    flags.add(load, "--queues", "N", flags.count, "number of queues, published to in turn", 1)
    flags.add_switch(load, "--transient", "publish transient messages")
    parser.set_defaults(pmessages=100_000, confirm=_WINDOW, prefetch=1000, ack_every=100, size=100)


def run_backlog(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Publish without a consumer, then drain the queues. Raises: BadOptions, Fault, RunFailed, OSError."""
    flags.check_sides(options, both="backlog needs a publisher, and a consumer to drain it")
    queues = numbered(own_name(), options.queues)
    topology = RunTopology(tuple(queues), arguments=dict(options.queue_args))
    material = replace(flags.material_of(options, "", queues), persistent=not options.transient)
    filling = replace(flags.load_of(options, material, (), copies=1), deliveries=None)
    with stage(options, topology, progress) as here:
        before = here.usage()
        outcome = here.run(filling)
        figures, published = {"fill": Figure(outcome.publish_s, "s")}, outcome.tally.published
        figures |= cost_figures(outcome.before, outcome.after, published, cpu="fill_cpu_per_message")
        if before and outcome.after and published:
            figures["memory_growth"] = Figure(outcome.after.rss_bytes - before.rss_bytes, "bytes")
        figures |= cost_figures(before, outcome.after, published, memory="memory_per_message")
        kept = outcome.tally.published - outcome.tally.nacked - outcome.tally.returned
        if kept and not outcome.failures and not outcome.interrupted:
            wanted = min(kept, options.cmessages or kept)
            consumers = flags.spread(queues, options.consumers)
            draining = replace(filling, producers=0, messages=None, queues=consumers, deliveries=wanted, ready=kept)
            drained = here.run(draining)
            figures["drain"] = Figure(drained.deliver_s, "s")
            figures |= cost_figures(drained.before, drained.after, drained.tally.delivered, cpu="drain_cpu_per_message")
            _append(outcome, drained)
        return here.result(outcome, figures)


def _append(first: RunOutcome, second: RunOutcome) -> None:
    first.intervals += [replace(one, at_s=one.at_s + first.seconds) for one in second.intervals]
    first.seconds += second.seconds
    first.deliver_s = second.deliver_s
    first.tallies |= second.tallies
    first.cpu_s += second.cpu_s
    first.busy_share = max(first.busy_share, second.busy_share)
    first.due_times.merge(second.due_times)
    first.after = second.after
    first.failures += second.failures
    first.interrupted = second.interrupted


def add_pingpong(commands: Any) -> None:
    """Add the parser of pingpong."""
    parser = flags.add_scenario(commands, "pingpong", f"{SCENARIOS['pingpong']}, unconfirmed")
    load = parser.add_argument_group("load")
    flags.add(load, "-x --pairs", "N", flags.count, "number of pairs", 8)
    flags.add(load, "-s --size", "SIZE", flags.size, "size of a body in bytes", STAMP_BYTES)
    flags.add(load, "-C --pmessages", "N", flags.count, "stop after N messages, both ways")
    flags.add_switch(load, "--persistent", "publish persistent messages")
    flags.add(load, "--processes", "N", flags.count, "number of processes (default one per core, at most 4)")
    flags.add_time(load)


def run_pingpong(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Run pairs of clients, each with one message in flight. Raises: BadOptions, Fault, RunFailed, OSError."""
    queues = numbered(own_name(), 2 * options.pairs)
    load = Load(
        address=options.uri,
        material=Material("", tuple(queues), options.size, persistent=options.persistent),
        producers=options.pairs,
        queues=(),
        demand=ReceiverPace(0, options.size),
        messages=options.pmessages,
        seconds=flags.seconds_of(options),
        interval_s=options.interval,
        processes=flags.processes_of(options),
        publishing=Pairs,
    )
    with stage(options, RunTopology(tuple(queues)), progress) as here:
        outcome = here.run(load)
        outcome.deliver_s = outcome.publish_s
        return here.result(outcome)


class PairSide(Receiver):
    """One side of a pair: consumes its own queue, and publishes each answer to the other side's queue."""

    def __init__(self, peer: PeerConnection, spool: Spool, latencies: LatencyRecorder, quota: DeliveryQuota) -> None:
        super().__init__(peer, ReceiverPace(0, 0), latencies, DeliveryQuota(None))
        self.sent = 0
        self._spool = spool
        self._messages = quota

    def serve(self) -> None:
        """Send a message, unless the limit is reached. Raises: OSError."""
        if self._messages.take(1):
            self._spool.stamp_all(0, self._spool.stride, time.monotonic_ns())
            self.sent += 1
            self._out = send_some(self._socket, bytes(self._spool.buffer[: self._spool.stride]))

    def tally(self) -> RunTally:
        return super().tally()._replace(published=self.sent)

    def react(self, events: int, now_ns: int) -> None:
        """Read the received message and answer it. Raises: Refusal, BrokenStream, OSError."""
        before = self.delivered
        super().react(events, now_ns)
        if self.delivered > before:
            self.serve()


class Pairs(Consumers):
    """The pairs of clients in one process. Invariant: each pair has at most one message in flight."""

    members: Sequence[PairSide]

    def __init__(self, share: Share) -> None:
        limits = [share.load.pace(number).messages or 0 for number in share.numbers]
        deliveries = None if share.load.messages is None else sum(limits)
        super().__init__(replace(share, load=replace(share.load, deliveries=deliveries)))

    def _connect(self, load: Load, number: int) -> Iterator[PairSide]:
        """Yield both sides of a pair, each connected to its queue."""
        here, there = load.material.keys[2 * number : 2 * number + 2]
        for own, other in ((here, there), (there, here)):
            peer = PeerConnection(load.address, CONSUME_CHANNEL)
            peer.call(wire.method(PUBLISH_CHANNEL, wire.CHANNEL_OPEN, b"\x00"), wire.CHANNEL_OPEN_OK)
            peer.consume(own, CONSUMER_TAG, auto_ack=True, prefetch=0)
            yield PairSide(peer, Spool(replace(load.material, keys=(other,)), 0, 1), self._latencies, self._quota)

    def start(self, at_ns: int) -> None:
        super().start(at_ns)
        for side in self.members[::2]:
            side.serve()

    def stop(self, now_ns: int) -> None:
        super().stop(now_ns)
        self._quota.left = 0

    def finished(self, now_ns: int) -> bool:
        """Return whether no message is in flight, or the wait for the last ones has timed out."""
        if self._quota.left:
            return False
        self.stop(now_ns)
        total = self.tally()
        return total.published <= total.delivered or now_ns - self.stop_ns > _END_NS
