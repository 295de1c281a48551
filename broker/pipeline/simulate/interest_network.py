"""The shipped interest of all brokers of a tree, linked by direct calls in simulated time."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from broker.overlay.aggregation import Aggregation
from broker.overlay.interest import Interest
from broker.overlay.packets import Conjunction, Packet, Resync, Space, Update, UpdateAck
from broker.overlay.simulation.member import Scheduler
from broker.overlay.simulation.network import SimulatedTree
from broker.overlay.wire import encode
from broker.pipeline.simulate.workload import parents_of, sites_of

SPACE: Final = Space("/", "orders")
DELAY_MS: Final = 10
BYTES_PER_MS: Final = 12_500  # 100 Mbit/s
DOWN_MS: Final = 1_000


@dataclass(slots=True)
class UpdateTraffic:
    """What crossed links: everything but what leaves were told, and that for the observed leaves alone."""

    packets: int = 0
    bytes: int = 0
    told_packets: int = 0
    told_bytes: int = 0


@dataclass(slots=True, eq=False)
class InterestBroker:
    """The interest of one broker at its place in the tree."""

    name: str
    node: str
    interest: Interest
    peers: list[InterestBroker] = field(default_factory=list)
    will_poll: bool = False


@dataclass(slots=True)
class InterestLane:
    """One direction of a link: packets arrive in order, after its delay and the time that their bytes take."""

    free_ms: float = 0.0
    session: int = 0


class InterestNetwork:
    """Brokers without streams: what they announce, and how that changes.

    `observed` are the sites whose leaves and inner brokers are complete; a site is an inner tree node with leaves only,
    and these. The brokers of other sites announce what their clients want, and acknowledge what they are told without
    applying it: what they would know is what the observed sites know, as sites are alike. Everything nearer to the root
    is complete.

    Cost: each broker knows each leaf, so that memory and time grow with the square of the size.
    """

    def __init__(
        self,
        tree: SimulatedTree,
        aggregation: Aggregation,
        patterns_max: int,
        observed: Collection[str] | None = None,
    ) -> None:
        self.tree = tree
        self.parents = parents_of(tree)
        self.scheduler = Scheduler()
        self.traffic = UpdateTraffic()
        self.applied_ms = 0
        self._aggregation = aggregation
        self._patterns_max = patterns_max
        self._lanes: dict[tuple[str, str], InterestLane] = {}
        self._blind = self._blind_nodes(observed)
        self._session = 0
        self.brokers = {
            name: InterestBroker(name, node, self._new_interest(node, name))
            for node, names in tree.brokers.items()
            for name in names
        }

    def is_observed(self, node: str) -> bool:
        """Return whether the brokers of a tree node are complete."""
        return node not in self._blind

    def route(self, leaf: str, key: str) -> tuple[int, set[str]]:
        """Return how many edges a message of a leaf crosses by what the brokers know, and the leaves that it reaches.

        The brokers of a tree node know the same, so that the first decides for all.
        """
        tree, crossed, reached = self.tree, 0, set[str]()
        waiting = [("", leaf)]
        while waiting:
            origin, node = waiting.pop()
            for towards in self.brokers[tree.brokers[node][0]].interest.wanting(SPACE, key):
                if towards != origin:
                    crossed += 1
                    if tree.is_leaf(towards):
                        reached.add(towards)
                    else:
                        waiting.append((node, towards))
        return crossed, reached

    def change(self, leaf: str, added: Iterable[tuple[str, str]], removed: Iterable[str]) -> None:
        """Change bindings of a leaf, each an id with its pattern."""
        broker = self.brokers[leaf]
        broker.interest.change([(name, Conjunction(SPACE, text), True) for name, text in added], removed)
        self._poll(broker)

    def start(self) -> None:
        """Open the links from the leaves up, each level when all below is known."""
        depths = {"inner0": 0}
        for node, parent in self.parents.items():
            depths[node] = depths[parent] + 1
        for depth in range(max(depths.values()), 0, -1):
            for node, parent in self.parents.items():
                if depths[node] == depth:
                    for name in self.tree.brokers[node]:
                        self._open(name, self.tree.brokers[parent])
            self.settle()

    def crash(self, name: str) -> int:
        """Kill a broker, start it again with nothing, and return how long all took to know everything again.

        Units: ms from the moment at which its links are open again.
        """
        broker = self.brokers[name]
        now_ms = self.scheduler.now_ms
        for peer in broker.peers:
            peer.interest.lost(broker.node, name, now_ms)
            self._poll(peer)
        peers, broker.peers = broker.peers, []
        for peer in peers:
            peer.peers.remove(broker)
        broker.interest = self._new_interest(broker.node, name)
        self.scheduler.run_until(now_ms + DOWN_MS)
        opened_ms = self.scheduler.now_ms
        self._open(name, [peer.name for peer in peers])
        self.settle()
        return max(0, self.applied_ms - opened_ms)

    def settle(self) -> None:
        """Run until nothing is under way and no broker has anything to say."""
        before = -1
        self.scheduler.run_all()
        while self.scheduler.count != before:
            before = self.scheduler.count
            for broker in self.brokers.values():
                self._poll(broker)
            self.scheduler.run_all()

    def take_traffic(self) -> UpdateTraffic:
        """Return what crossed the links since the last call."""
        traffic, self.traffic = self.traffic, UpdateTraffic()
        return traffic

    def knowledge(self) -> dict[str, dict[str, tuple[frozenset[str], dict[str, int]]]]:
        """Return what each complete broker knows of each direction: patterns, and the times of interested leaves."""
        return {
            broker.name: {
                node: (frozenset(broker.interest.roots(node, SPACE)), broker.interest.vector(node, SPACE))
                for node in self.tree.neighbours[broker.node]
            }
            for broker in self.brokers.values()
            if broker.node not in self._blind
        }

    def _new_interest(self, node: str, name: str) -> Interest:
        leaf = name if self.tree.is_leaf(node) else None
        return Interest(node, self.tree.neighbours[node], self._aggregation, self._patterns_max, leaf)

    def _blind_nodes(self, observed: Collection[str] | None) -> frozenset[str]:
        blind: set[str] = set()
        for node in sites_of(self.tree, self.parents):
            if observed is not None and node not in observed and node in self.parents:
                blind.update((node, *(other for other in self.tree.neighbours[node] if other != self.parents[node])))
        return frozenset(blind)

    def _open(self, name: str, others: Iterable[str]) -> None:
        """Open the links of a broker to others."""
        broker = self.brokers[name]
        for other_name in others:
            other = self.brokers[other_name]
            self._session += 1
            broker.peers.append(other)
            other.peers.append(broker)
            for sender, receiver in ((broker, other), (other, broker)):
                lane = self._lanes.setdefault((sender.name, receiver.name), InterestLane())
                lane.session = self._session
                lane.free_ms = self.scheduler.now_ms
                receiver.interest.connected(sender.node, sender.name, self._session)
                self._poll_soon(receiver)

    def _poll_soon(self, broker: InterestBroker) -> None:
        """Poll a broker when all packets of this millisecond have arrived."""
        if not broker.will_poll:
            broker.will_poll = True
            self.scheduler.after(0, partial(self._poll, broker))

    def _poll(self, broker: InterestBroker) -> None:
        broker.will_poll = False
        for _, name, packet in broker.interest.take_output(self.scheduler.now_ms):
            self._send(broker, self.brokers[name], packet)

    def _send(self, sender: InterestBroker, receiver: InterestBroker, packet: Packet) -> None:
        size_bytes = len(encode(packet))
        self._count(sender, receiver, packet, size_bytes)
        lane, now_ms = self._lanes[sender.name, receiver.name], self.scheduler.now_ms
        lane.free_ms = max(lane.free_ms, now_ms) + size_bytes / BYTES_PER_MS
        delay_ms = DELAY_MS + math.ceil(lane.free_ms) - now_ms
        self.scheduler.after(delay_ms, partial(self._arrive, sender, receiver, packet, lane.session))

    def _count(self, sender: InterestBroker, receiver: InterestBroker, packet: Packet, size_bytes: int) -> None:
        node = receiver.node if isinstance(packet, Update) else sender.node
        if not self.tree.is_leaf(node):
            self.traffic.packets += 1
            self.traffic.bytes += size_bytes
        elif node not in self._blind:  # the packet tells this leaf something, or acknowledges that
            self.traffic.told_packets += 1
            self.traffic.told_bytes += size_bytes

    def _arrive(self, sender: InterestBroker, receiver: InterestBroker, packet: Packet, session: int) -> None:
        if self._lanes[sender.name, receiver.name].session != session:
            return
        if isinstance(packet, Update):
            self.applied_ms = self.scheduler.now_ms
            if receiver.node in self._blind and self.parents[receiver.node] == sender.node:
                self._send(receiver, sender, UpdateAck(packet.serial))
                return
        assert isinstance(packet, Update | UpdateAck | Resync)
        receiver.interest.received(sender.node, sender.name, packet, self.scheduler.now_ms)
        self._poll_soon(receiver)
