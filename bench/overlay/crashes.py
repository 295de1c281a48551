"""The failure test: two of three brokers in one tree node are killed while clients publish and consume.

Source: section 5.2 of the paper, Figure 7. Of 100 topics, two groups of subscribers at one site and a third at another
subscribe to the first half. A fourth group subscribes to the second half when only one of the three brokers is left.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bench.ground import paced_source, sink
from bench.herd import BURST_S, Herd
from bench.overlay.tree import Logical, Tree, leaf_of
from bench.stage import Stage
from broker.perf import wire
from broker.perf.peer import Address, PeerConnection
from broker.perf.receiver import LatencyRecorder

BUCKET_NS = 100_000_000
_DUE_BYTES = 8
MIDDLE = ("ib1", "ib2", "ib3")
EXCHANGES = ("feed-5", "feed-1", "feed-3", "feed-8")
"""Names whose streams go through ib1, ib2, ib3 and ib1; the first one goes through ib3 when ib1 is down."""
TOPICS = 100
_OF_EXCHANGE = TOPICS // len(EXCHANGES)
_FIRST_LIMIT_S = 30.0
_DRAIN_LIMIT_S = 15.0
_QUIET_S = 0.5
_CPU_EVERY_S = 1.0
_BUCKETS_PER_S = 1_000_000_000 // BUCKET_NS
LATE = "fourth"


@dataclass(frozen=True, slots=True)
class Numbering:
    """The numbers of the messages of a run: one message is due every `step_ns`.

    Topics are published in turn, so a message's number modulo `topics` is the number of its topic.
    """

    start_ns: int
    step_ns: int
    topics: int

    def of(self, due_ns: int) -> int:
        """Return the number of a message that was due at a time."""
        return (due_ns - self.start_ns) // self.step_ns


Faults = Counter[str]
"""Messages that subscribers did not receive after their first one (missing), received twice (double), or received after
a later one (disordered)."""


class Arrivals(LatencyRecorder):
    """The deliveries of one connection, whose subscribers have a topic each.

    Units: `buckets` has the number of deliveries in each BUCKET_NS since `start_ns`.
    """

    def __init__(self, start_ns: int) -> None:
        super().__init__(0)
        self.buckets: dict[int, int] = {}
        self._start_ns = start_ns
        self._dues = array("Q")

    def record(self, buffer: bytes | bytearray, at: int, stride: int, count: int) -> None:
        """Record deliveries, with the due times in their bodies."""
        bucket = (self.now_ns - self._start_ns) // BUCKET_NS
        self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        for number in range(count):
            place = at + number * stride
            self._dues.append(int.from_bytes(buffer[place : place + _DUE_BYTES], "big"))

    def by_topic(self, numbering: Numbering) -> dict[int, list[int]]:
        """Return the numbers of the messages of each topic, in the order of their arrival."""
        found: dict[int, list[int]] = {}
        for due_ns in self._dues:
            number = numbering.of(due_ns)
            found.setdefault(number % numbering.topics, []).append(number)
        return found

    def faults(self, numbering: Numbering, wanted: Collection[int], ends: Sequence[int]) -> Faults:
        """Return the faults of the deliveries; a wanted topic without deliveries counts as one missing message.

        Shapes: topic T was published up to, but excluding, the number `ends[T % len(ends)]`.
        """
        topics = self.by_topic(numbering)
        found = Faults(missing=len(set(wanted) - topics.keys()))
        for topic, numbers in topics.items():
            found.update(faults_of(numbers, numbering.topics, ends[topic % len(ends)]))
        return found


def faults_of(numbers: Sequence[int], step: int, end: int) -> Faults:
    """Return the faults of one topic's numbers, which should rise by `step` from the first one to before `end`."""
    distinct = set(numbers)
    first = min(distinct)
    due = len(range(first, end, step))
    later = 0
    disordered = 0
    for number in numbers:
        disordered += number < later
        later = max(later, number)
    return Faults(missing=due - len(distinct), double=len(numbers) - len(distinct), disordered=disordered)


def longest_dip_s(counts: Sequence[int], due: float) -> float:
    """Return the longest continuous time in which less than half of the due messages arrived."""
    longest = current = 0
    for count in counts:
        current = current + 1 if count < due / 2 else 0
        longest = max(longest, current)
    return longest * BUCKET_NS / 1e9


@dataclass(frozen=True, slots=True)
class Group:
    """Subscribers at one leaf: `copies` for each topic of the exchanges, which are indexes into EXCHANGES."""

    name: str
    leaf: str
    exchanges: tuple[int, ...]
    copies: int


GROUPS = (
    Group("first", "sb1", (0, 1), 5),
    Group("second", "sb1", (0, 1), 5),
    Group("third", "sb2", (0, 1), 5),
    Group("fourth", "sb2", (2, 3), 2),
)


def measure(stage: Stage) -> None:
    """Run the whole test. Raises: BrokerFailed, Fault, OSError."""
    with six_brokers(stage) as tree:
        tree.start()
        for name in ("pb", "sb1", "sb2"):
            peer = PeerConnection(tree.address(name), wire.CONSUME_CHANNEL)
            for exchange in EXCHANGES:
                peer.declare_exchange(exchange, durable=True)
            peer.close()
        with ThreadPoolExecutor(1) as aside:
            stage.add("failure", _Test(stage, tree, aside).run())


def six_brokers(stage: Stage) -> Tree:
    """Return the paper's tree: a leaf for publishers, three brokers in one node, two leaves for subscribers.

    The three are started last, so that they connect to the leaves: a restarted broker has its links at once.
    """
    leaves = ("pb", "sb1", "sb2")
    processes = {name: leaf_of(name) for name in leaves} | {name: (Logical(name, "middle"),) for name in MIDDLE}
    return Tree(stage, EXCHANGES, processes, [(name, "middle") for name in leaves])


def keys_of(exchange: int) -> list[str]:
    """Return the topics of an exchange, in the order in which they are published."""
    return [f"topic.{exchange + len(EXCHANGES) * place:03d}" for place in range(_OF_EXCHANGE)]


class GroupConnections:
    """The connections of a group: each has one subscriber of each topic."""

    def __init__(self, group: Group, address: Address, start_ns: int) -> None:
        """Declare and consume the queues, which have no bindings yet. Raises: Refusal, OSError."""
        self.group = group
        self.arrivals = [Arrivals(start_ns) for _ in range(group.copies)]
        self.sinks = []
        self._address = address
        self._bindings: list[tuple[str, str, str]] = []
        for copy, arrivals in enumerate(self.arrivals):
            peer = PeerConnection(address, wire.CONSUME_CHANNEL)
            for exchange in group.exchanges:
                for key in keys_of(exchange):
                    queue = f"{group.name}-{copy}-{key}"
                    peer.declare_queue(queue, durable=False)
                    peer.consume(queue, key, auto_ack=True, prefetch=0)
                    self._bindings.append((queue, EXCHANGES[exchange], key))
            self.sinks.append(sink(peer, 0, arrivals))

    def subscribe(self) -> None:
        peer = PeerConnection(self._address, wire.CONSUME_CHANNEL)
        peer.call_all((wire.queue_bind(peer.channel, *names) for names in self._bindings), wire.QUEUE_BIND_OK)
        peer.close()

    @property
    def topics(self) -> list[int]:
        return [exchange + len(EXCHANGES) * place for exchange in self.group.exchanges for place in range(_OF_EXCHANGE)]

    @property
    def delivered(self) -> int:
        return sum(one.delivered for one in self.sinks)

    def buckets(self, first: int, last: int) -> list[int]:
        """Return the deliveries in each bucket from the first one to before the last one."""
        return [sum(one.buckets.get(at, 0) for one in self.arrivals) for at in range(first, last)]

    def due_per_s(self, per_s: float) -> float:
        """Return the rate at which this group should receive messages."""
        return per_s * len(self.group.exchanges) / len(EXCHANGES) * self.group.copies


class _Test:
    """One run of the test in one loop; a thread kills and starts brokers and subscribes the fourth group."""

    def __init__(self, stage: Stage, tree: Tree, aside: ThreadPoolExecutor) -> None:
        self._stage = stage
        self._tree = tree
        self._aside = aside
        self._per_s = stage.plan.failure_per_s
        self._actions: list[Future[object]] = []
        self._begun_s = 0.0
        self._past_events: list[tuple[float, str]] = []
        self._cpu: dict[str, list[float]] = {name: [] for name in MIDDLE}
        self._used_s = dict.fromkeys(MIDDLE, 0.0)
        self._next_cpu_s = 0.0
        self._origin_ns = time.monotonic_ns()
        self._numbering = Numbering(self._origin_ns, round(1e9 / self._per_s), TOPICS)
        self._groups = {
            group.name: GroupConnections(group, tree.address(group.leaf), self._origin_ns) for group in GROUPS
        }
        actions: dict[str, Callable[[], object]] = {
            "ib1 killed": partial(tree.brokers["ib1"].service.stop, killed=True),
            "ib2 killed": partial(tree.brokers["ib2"].service.stop, killed=True),
            "fourth group": self._groups[LATE].subscribe,
            "ib1 back": tree.brokers["ib1"].service.start,
            "ib2 back": tree.brokers["ib2"].service.start,
        }
        self._events = list(zip(stage.plan.timeline_s, actions.items(), strict=False))

    def run(self) -> dict[str, Any]:
        """Run the test and return its figures. Raises: Fault, OSError."""
        address, per_s = self._tree.address("pb"), 1e9 / self._numbering.step_ns / len(EXCHANGES)
        sources = [paced_source(address, keys_of(place), per_s, name) for place, name in enumerate(EXCHANGES)]
        with closing(
            Herd([], [one for group in self._groups.values() for one in group.sinks], burst_s=BURST_S)
        ) as herd:
            early = [group for name, group in self._groups.items() if name != LATE]
            for group in early:
                group.subscribe()
            self._numbering = replace(self._numbering, start_ns=time.monotonic_ns())
            for place, source in enumerate(sources):
                herd.add(source, self._numbering.start_ns + place * self._numbering.step_ns)
            lacking = "no message reached one of the groups"
            herd.reach(_FIRST_LIMIT_S, lambda: all(group.delivered for group in early), lacking)
            herd.run(self._stage.plan.settle_s)
            begun_ns = time.monotonic_ns()
            self._begun_s = begun_ns / 1e9
            self._next_cpu_s = self._begun_s + _CPU_EVERY_S
            for name in MIDDLE:
                self._cpu_since_last_s(name)
            herd.run(self._stage.plan.timeline_s[-1], self._tick)
            for future in self._actions:
                future.result()
            ended_ns = time.monotonic_ns()
            for source in sources:
                source.stop()
            herd.run(_QUIET_S, lambda: all(source.flushed for source in sources))
            ends = [source.published * len(sources) for source in sources]
            self._drain(herd, ends)
        return self._figures(begun_ns, ended_ns, ends)

    def _tick(self) -> bool:
        """Carry out due events and sample the CPU time of the middle brokers; return False, so that the run goes on."""
        now_s = time.monotonic()
        while self._events and now_s >= self._begun_s + self._events[0][0]:
            _, (name, action) = self._events.pop(0)
            self._past_events.append((now_s - self._begun_s, name))
            self._actions.append(self._aside.submit(action))
        if now_s >= self._next_cpu_s:
            self._next_cpu_s += _CPU_EVERY_S
            for name in MIDDLE:
                self._cpu[name].append(self._cpu_since_last_s(name) / _CPU_EVERY_S)
        return False

    def _cpu_since_last_s(self, name: str) -> float:
        """Return the CPU time of a broker since the last sample, or since its restart."""
        before_s, used_s = self._used_s[name], self._tree.cpu_s(name)
        self._used_s[name] = used_s
        return used_s - before_s if used_s >= before_s else used_s

    def _drain(self, herd: Herd, ends: Sequence[int]) -> None:
        """Receive until nothing is missing, at most for the time that a repair may take."""
        deadline = time.monotonic() + _DRAIN_LIMIT_S
        while time.monotonic() < deadline:
            moved = herd.run(_QUIET_S)
            if not any(moved.got_each) and not self._faults(ends)["missing"]:
                return

    def _faults(self, ends: Sequence[int]) -> Faults:
        found = Faults(missing=0, double=0, disordered=0)
        for group in self._groups.values():
            for one in group.arrivals:
                found.update(one.faults(self._numbering, group.topics, ends))
        return found

    def _figures(self, begun_ns: int, ended_ns: int, ends: Sequence[int]) -> dict[str, Any]:
        first, last = ((at_ns - self._origin_ns) // BUCKET_NS for at_ns in (begun_ns, ended_ns))
        counts = {name: group.buckets(first, last) for name, group in self._groups.items()}
        dips_s = []
        for name, own in counts.items():
            begins = next((at for at, count in enumerate(own) if count), len(own)) if name == LATE else 0
            due = self._groups[name].due_per_s(self._per_s) / _BUCKETS_PER_S
            dips_s.append(longest_dip_s(own[begins:], due))
        seconds = range(0, last - first - _BUCKETS_PER_S + 1, _BUCKETS_PER_S)
        return {
            **self._faults(ends),
            "delivered": sum(group.delivered for group in self._groups.values()),
            "dip_s": max(dips_s),
            "late_due_per_s": self._groups[LATE].due_per_s(self._per_s),
            "rates": {
                name: [sum(counts[name][at : at + _BUCKETS_PER_S]) for at in seconds] for name in ("first", LATE)
            },
            "cpu": {name: [round(share, 4) for share in shares] for name, shares in self._cpu.items()},
            "events": [(round(at_s, 1), name) for at_s, name in self._past_events],
        }
