"""Routing: declares many wildcard bindings, and publishes always new keys of which one in a hundred matches (S5)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from bench.brokers import Broker
from bench.companion import Companion
from bench.meter import Figures, Meter
from bench.scenario import CALL_BYTES, Limits
from bench.scenarios.flow import message_bytes
from bench.scenarios.relayed import relayed
from bench.topics import load, workload
from bench.topics.traffic import Keys
from broker.perf.crew import RunFailed
from broker.perf.peer import PeerConnection

_SETTLE_S = 1.0
_STEP = 1000
_WARM_UP_KEYS = 5_000
_SPARE = 1.1  # some of the drawn keys match a binding, and are left out


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
            peer = load.open_peer(broker)
            try:
                meter.start()
                seconds = self._bind(peer, limits.bind_seconds)
                time.sleep(_SETTLE_S)
                used = meter.stop(count)
            finally:
                peer.close()
            each = {"each_bytes": used["rss_growth_bytes"] / count} if used else {}
            self.bound[broker.name] = used | each | {"declare_s": seconds, "bindings": count}
        return self.bound[broker.name]

    def _bind(self, peer: PeerConnection, limit_s: float) -> float:
        seconds = 0.0
        for at in range(0, len(self.patterns), _STEP):
            seconds += load.bind_all(peer, self.patterns[at : at + _STEP])
            if seconds > limit_s:
                raise RunFailed(f"{at + _STEP:,} of {len(self.patterns):,} bindings after {seconds:.0f} s")
        return seconds

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


@dataclass(slots=True)
class Bindings:
    """Declares bindings in a broker that has none."""

    topology: Topology
    name: str = "bindings"
    rounds: int = 1
    relayed: bool = False
    record_bytes: int = 0

    @property
    def title(self) -> str:
        """Return a title of one line for readers."""
        return "wildcard bindings of one queue: declare, memory"

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
        return message_bytes(len(load.BODY))[0] / CALL_BYTES, 0.0

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        """Run the scenario once. Raises: RunFailed, Fault, OSError."""
        if broker.relay:
            return relayed(len(load.BODY), 0, limits.seconds)
        self.topology.bind(broker, limits)
        peer = load.open_peer(broker)
        try:
            with Companion(broker):
                if broker.name not in self._published:
                    self._published[broker.name] = 1
                    load.publish(broker, peer, load.encode(self.topology.batch(0, limits)), limits.seconds)
                keys = self.topology.batch(self._published[broker.name], limits)
                self._published[broker.name] += 1
                tape, meter = load.encode(keys), Meter(broker)
                meter.start()
                sent = load.publish(broker, peer, tape, limits.seconds)
                used = meter.stop(sent.messages)
        finally:
            peer.close()
        wanted = self.topology.matching(keys[: sent.messages])
        if sent.arrived != wanted:
            raise RunFailed(f"{sent.arrived} of {wanted} messages that match arrived")
        return used | {
            "messages": sent.messages,
            "seconds": sent.seconds,
            "per_s": sent.messages / sent.seconds,
            "arrived": sent.arrived,
        }
