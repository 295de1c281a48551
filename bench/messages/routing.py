"""Routing: declares many wildcard bindings, and publishes always new keys of which one in a hundred matches (S5)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random

from bench.brokers import Broker
from bench.messages.companion import Companion
from bench.messages.relays import relayed
from bench.messages.scenario import CALL_BYTES, Limits, message_bytes
from bench.meter import Meter
from bench.run import Figures
from bench.topics import workload
from broker.perf import wire
from broker.perf.crew import RunFailed
from broker.perf.peer import PeerConnection
from broker.routing.index import TopicIndex

EXCHANGE = QUEUE = "bench-topics"
BODY = bytes(16)
MATCHING_SHARE = 0.01
_CHANNEL = 1
_CHUNK_MESSAGES = 2000
_LIMIT_S = 400.0
_SETTLE_S = 1.0
_STEP = 1000
_WARM_UP_KEYS = 5_000
_SPARE = 1.1  # some of the drawn keys match a binding, and are left out


class Keys:
    """Generates routing keys without repetition, one in a hundred of which matches a binding."""

    def __init__(self, patterns: Sequence[str], count: int) -> None:
        self._random = Random(4)
        self._patterns = patterns
        index = TopicIndex()
        for text in patterns:
            index.add(index.parse(text), text)
        self._match = index.match
        drawn = workload.keys(count, seed=6, shortest=len(workload.VOCABULARY))
        self._strangers = [key for key in drawn if not index.match(key)]
        self._used: set[str] = set()

    def take(self, count: int) -> list[str]:
        """Return `count` new keys, or the remaining ones."""
        keys: list[str] = []
        matching = max(1, round(count * MATCHING_SHARE))
        while len(keys) < matching:
            key = workload.meeting_key(self._random.choice(self._patterns), self._random)
            if key not in self._used:
                self._used.add(key)
                keys.append(key)
        keys += [self._strangers.pop() for _ in range(min(count - matching, len(self._strangers)))]
        self._random.shuffle(keys)
        return keys

    def matching(self, keys: Sequence[str]) -> int:
        """Return how many of the keys match a binding."""
        return sum(1 for key in keys if self._match(key))


@dataclass(slots=True)
class Topology:
    """The bindings of one queue to one topic exchange, and the published keys: the same for every broker.

    Shapes: `rank` is the index of its number of bindings in the limits.
    """

    rank: int
    patterns: list[str] = field(default_factory=list)
    bound: dict[str, Figures] = field(default_factory=dict)
    batches: list[list[str]] = field(default_factory=list)
    _keys: Keys | None = None

    def bind(self, broker: Broker, limits: Limits) -> Figures:
        """Declare the topology, unless it exists, and return the cost.

        Raises: RunFailed when it takes too long.
        """
        if broker.name not in self.bound:
            count = limits.bindings[self.rank]
            self.patterns = self.patterns or workload.narrow_patterns(count)
            meter = Meter(broker)
            peer = open_peer(broker)
            try:
                meter.start()
                seconds = _bind(peer, self.patterns, limits.bind_seconds)
                time.sleep(_SETTLE_S)
                used = meter.stop(count)
            finally:
                peer.close()
            each = {"each_bytes": used["rss_growth_bytes"] / count} if used else {}
            self.bound[broker.name] = used | each | {"declare_s": seconds, "bindings": count}
        return self.bound[broker.name]

    def batch(self, number: int, limits: Limits) -> list[str]:
        """Return the keys of a round, which are new to every broker."""
        if self._keys is None:
            drawn = _WARM_UP_KEYS + limits.rounds * limits.new_keys
            self._keys = Keys(self.patterns, round(drawn * _SPARE))
        while len(self.batches) <= number:
            self.batches.append(self._keys.take(limits.new_keys if self.batches else _WARM_UP_KEYS))
        return self.batches[number]

    def matching(self, keys: list[str]) -> int:
        """Return how many of the keys match a binding."""
        assert self._keys is not None
        return self._keys.matching(keys)


def open_peer(broker: Broker) -> PeerConnection:
    """Return a connection to a broker, with exchange and queue declared."""
    peer = PeerConnection(broker.address, _CHANNEL)
    peer.socket.settimeout(_LIMIT_S)
    peer.declare_exchange(EXCHANGE, durable=False)
    peer.declare_queue(QUEUE, durable=False)
    return peer


def _bind(peer: PeerConnection, patterns: Sequence[str], limit_s: float) -> float:
    """Bind the queue by every pattern, and return the seconds until all exist. Raises: RunFailed."""
    begun = time.monotonic()
    names = b"\x00\x00" + wire.short_string(QUEUE) + wire.short_string(EXCHANGE)
    no_wait = b"\x01" + wire.long_string(b"")
    for at in range(0, len(patterns), _STEP):
        arguments = (names + wire.short_string(text) + no_wait for text in patterns[at : at + _STEP])
        peer.socket.sendall(b"".join(wire.method(_CHANNEL, wire.QUEUE_BIND, one) for one in arguments))
        peer.settle()
        if time.monotonic() - begun > limit_s:
            raise RunFailed(f"{at + _STEP:,} of {len(patterns):,} bindings after {limit_s:.0f} s")
    return time.monotonic() - begun


@dataclass(frozen=True, slots=True)
class Tape:
    """Encoded messages, concatenated. Shapes: `ends` has the end offset of each message."""

    buffer: bytes
    ends: list[int]

    @classmethod
    def of(cls, keys: Sequence[str]) -> Tape:
        """Return transient messages with these routing keys."""
        pieces = [wire.publish(_CHANNEL, EXCHANGE, key, BODY, persistent=False) for key in keys]
        return cls(b"".join(pieces), list(accumulate(map(len, pieces))))

    def publish(self, peer: PeerConnection, seconds: float) -> tuple[int, float, int]:
        """Publish all, or as much as the time allows; return the count, the seconds, and the growth of the queue.

        It ends when the broker has routed all: a round trip on the same channel follows the last message, and the
        queue's own count follows the round trip.
        """
        view = memoryview(self.buffer)
        sync = wire.basic_qos(_CHANNEL, 0)
        held = peer.declare_queue(QUEUE, durable=False)
        begun = time.monotonic()
        at = messages = 0
        while messages < len(self.ends) and time.monotonic() - begun < seconds:
            first = not messages
            messages = min(len(self.ends), messages + _CHUNK_MESSAGES)
            stop = self.ends[messages - 1]
            peer.socket.sendall(view[at:stop])
            at = stop
            if first:
                peer.socket.sendall(sync)
            else:
                peer.call(sync, wire.BASIC_QOS_OK)  # the answer is that of the previous chunk: one is always in flight
        peer.call(b"", wire.BASIC_QOS_OK)
        took_s = time.monotonic() - begun
        return messages, took_s, peer.declare_queue(QUEUE, durable=False) - held


@dataclass(slots=True)
class Bindings:
    """Declares bindings in a broker that has none."""

    topology: Topology
    name: str = "bindings"
    title: str = "wildcard bindings of one queue: declare, memory"
    rounds: int = 1
    relayed: bool = False
    record_bytes: int = 0

    @property
    def stage(self) -> str:
        return f"routing-{self.topology.rank}"

    def least_calls(self, limits: Limits) -> None:
        """Return None: a read may carry any number of bindings."""

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        """Run the scenario once. Raises: RunFailed, Fault, OSError."""
        with Companion(broker):
            return self.topology.bind(broker, limits)


@dataclass(slots=True)
class Routing:
    """Publishes keys that were never published before; the queue's own count shows how many matched."""

    name: str
    topology: Topology
    rounds: int = 99
    relayed: bool = True
    record_bytes: int = 0
    _published: dict[str, int] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Return a title of one line for readers."""
        many = len(self.topology.patterns)
        return f"{many:,} wildcard bindings, 1 % match, ever new keys, transient, 16 B, per publish"

    @property
    def stage(self) -> str:
        return f"routing-{self.topology.rank}"

    def least_calls(self, limits: Limits) -> tuple[float, float]:
        """Return reads per publish when every call moves as much as possible; deliveries are negligible."""
        return message_bytes(len(BODY))[0] / CALL_BYTES, 0.0

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        """Run the scenario once. Raises: RunFailed, Fault, OSError."""
        if broker.relay:
            return relayed(len(BODY), 0, limits.seconds)
        self.topology.bind(broker, limits)
        peer = open_peer(broker)
        try:
            with Companion(broker):
                if broker.name not in self._published:
                    self._published[broker.name] = 1
                    Tape.of(self.topology.batch(0, limits)).publish(peer, limits.seconds)
                keys = self.topology.batch(self._published[broker.name], limits)
                self._published[broker.name] += 1
                tape, meter = Tape.of(keys), Meter(broker)
                meter.start()
                messages, seconds, arrived = tape.publish(peer, limits.seconds)
                used = meter.stop(messages)
        finally:
            peer.close()
        wanted = self.topology.matching(keys[:messages])
        if arrived != wanted:
            raise RunFailed(f"{arrived} of {wanted} messages that match arrived")
        return used | {"messages": messages, "seconds": seconds, "per_s": messages / seconds, "arrived": arrived}
