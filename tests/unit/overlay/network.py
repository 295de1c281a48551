"""A network of the Interest objects of overlay brokers, over links that can lose and repeat packets."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from broker.overlay.aggregation import Aggregation
from broker.overlay.interest import Interest
from broker.overlay.packets import Conjunction, Space

SPACE = Space("/", "orders")
OTHER = Space("/", "prices")


def wants(pattern: str, space: Space = SPACE) -> Conjunction:
    """Return a conjunction, by default in SPACE."""
    return Conjunction(space, pattern)


class Network:
    """A tree of nodes, each with its brokers, and edges. A node with one edge is a leaf.

    Packets wait in one queue per sender and receiver until the test delivers, loses or repeats them.
    """

    def __init__(
        self,
        brokers: Mapping[str, tuple[str, ...]],
        edges: Iterable[tuple[str, str]],
        aggregation: Aggregation | Mapping[str, Aggregation] = Aggregation.COVERING,
        patterns_max: int = 1000,
    ) -> None:
        self.brokers = dict(brokers)
        self.node_of = {broker: node for node, names in brokers.items() for broker in names}
        self.neighbours: dict[str, list[str]] = {node: [] for node in brokers}
        for one, other in edges:
            self.neighbours[one].append(other)
            self.neighbours[other].append(one)
        self.aggregation = aggregation
        self.patterns_max = patterns_max
        self.now_ms = 0
        self.sessions = 0
        self.bounds: dict[str, int] = {}
        self.interests = {broker: self.make(broker) for broker in self.node_of}
        self.links: set[tuple[str, str]] = set()
        self.wires: dict[tuple[str, str], deque[Any]] = {}
        for one, other in self.pairs():
            self.connect(one, other)

    def is_leaf(self, broker: str) -> bool:
        """Return whether a broker has clients."""
        return len(self.neighbours[self.node_of[broker]]) == 1

    @property
    def leaves(self) -> list[str]:
        """Return the brokers that have clients."""
        return [broker for broker in self.node_of if self.is_leaf(broker)]

    def make(self, broker: str) -> Any:
        """Return the Interest of a starting broker."""
        node = self.node_of[broker]
        aggregation = self.aggregation if isinstance(self.aggregation, Aggregation) else self.aggregation[broker]
        return Interest(
            node,
            self.neighbours[node],
            aggregation,
            self.patterns_max,
            broker if self.is_leaf(broker) else None,
            persisted_bound=self.bounds.get(broker, 0),
        )

    def pairs(self) -> list[tuple[str, str]]:
        """Return all pairs of brokers that may have a link."""
        return [
            (one, other)
            for one in self.node_of
            for node in self.neighbours[self.node_of[one]]
            for other in self.brokers[node]
            if one < other
        ]

    def connect(self, one: str, other: str) -> None:
        """Link two brokers anew."""
        self.sessions += 1
        self.links.add((min(one, other), max(one, other)))
        for sender, receiver in ((one, other), (other, one)):
            self.wires[sender, receiver] = deque()
            self.interests[sender].connected(self.node_of[receiver], receiver, self.sessions)
        self.collect(one)
        self.collect(other)

    def cut(self, one: str, other: str) -> None:
        """Lose a link and the packets on it."""
        self.links.discard((min(one, other), max(one, other)))
        for sender, receiver in ((one, other), (other, one)):
            self.wires.pop((sender, receiver), None)
            self.interests[sender].lost(self.node_of[receiver], receiver, self.now_ms)

    def crash(self, broker: str) -> list[tuple[str, str]]:
        """Lose a broker's state and its links; return the links."""
        links = [link for link in self.links if broker in link]
        for one, other in links:
            self.cut(one, other)
        self.interests[broker] = self.make(broker)
        return links

    def collect(self, broker: str) -> None:
        """Put a broker's output on its links."""
        interest = self.interests[broker]
        for _, receiver, packet in interest.take_output(self.now_ms):
            self.bounds[broker] = interest.own_time.bound
            self.wires[broker, receiver].append(packet)

    def change(
        self, leaf: str, added: Iterable[tuple[str, Conjunction, bool]] = (), removed: Iterable[str] = ()
    ) -> None:
        """Change the bindings of a leaf."""
        self.interests[leaf].change(added, removed)
        self.collect(leaf)

    def deliver(self, sender: str, receiver: str, *, again: bool = False, lost: bool = False) -> None:
        """Deliver the next packet of a link; keep it on the link too (`again`), or lose it instead (`lost`)."""
        wire = self.wires[sender, receiver]
        packet = wire[0] if again else wire.popleft()
        if not lost:
            self.interests[receiver].received(self.node_of[sender], sender, packet, self.now_ms)
            self.collect(receiver)

    def settle(self) -> None:
        """Deliver packets until none is in flight."""
        for _ in range(200):
            waiting = [pair for pair, wire in self.wires.items() if wire]
            if not waiting:
                return
            for sender, receiver in waiting:
                while self.wires[sender, receiver]:
                    self.deliver(sender, receiver)
        raise AssertionError("the network does not settle")

    def pass_time(self, ms: int) -> None:
        """Advance the clock, and collect all brokers' output."""
        self.now_ms += ms
        for broker in self.node_of:
            self.collect(broker)
