"""A simulated overlay: trees of tree nodes, brokers, links, clients and faults."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from broker.overlay.aggregation import Aggregation
from broker.overlay.forwarding import ForwardingCounts
from broker.overlay.inner import Inner
from broker.overlay.interest import Interest
from broker.overlay.packets import Packet, Space
from broker.overlay.simulation.leaf_member import LeafMember
from broker.overlay.simulation.link import SimulatedLink
from broker.overlay.simulation.member import Dice, Scheduler, SimulatedBroker

TICK_MS = 50


@dataclass(frozen=True, slots=True)
class SimulatedTree:
    """The brokers of each tree node, and the edges of the tree. A tree node with one edge is a leaf broker."""

    brokers: Mapping[str, tuple[str, ...]]
    neighbours: Mapping[str, tuple[str, ...]]

    @property
    def leaves(self) -> tuple[str, ...]:
        """The names of the leaf brokers."""
        return tuple(self.brokers[node][0] for node in self.brokers if self.is_leaf(node))

    def is_leaf(self, node: str) -> bool:
        """Return whether a tree node is that of a leaf broker, by its name."""
        return node.startswith("leaf")


class InnerMember(SimulatedBroker):
    """An inner broker, which keeps nothing across a crash."""

    def __init__(
        self,
        name: str,
        node: str,
        neighbours: tuple[str, ...],
        scheduler: Scheduler,
        aggregation: Aggregation,
        patterns_max: int,
    ) -> None:
        super().__init__(name, node, scheduler)
        self._neighbours = neighbours
        self._aggregation = aggregation
        self._patterns_max = patterns_max

    def start(self) -> None:
        """Start the broker without state."""
        interest = Interest(self.node, self._neighbours, self._aggregation, self._patterns_max)
        self.broker = Inner(interest, self._neighbours)

    @property
    def counts(self) -> ForwardingCounts:
        """The broker's forwarding counts since its start."""
        assert isinstance(self.broker, Inner)
        return self.broker.counts


class Network:
    """All brokers of a topology in one process, with simulated time.

    The exchanges of the spaces exist at the leaves named in `publishers`, at all leaves if it is None. `on_packet` is
    called with sender, receiver and packet for each packet that is put on a link.
    """

    def __init__(
        self,
        topology: SimulatedTree,
        spaces: Sequence[Space],
        dice: Dice,
        aggregation: Callable[[], Aggregation],
        patterns_max: int = 10_000,
        publishers: Collection[str] | None = None,
    ) -> None:
        self.topology = topology
        self.spaces = tuple(spaces)
        self.dice = dice
        self.patterns_max = patterns_max
        self.scheduler = Scheduler()
        self.on_packet: Callable[[str, str, Packet], None] = _count_nothing
        self.leaves: dict[str, LeafMember] = {}
        self.inner: dict[str, InnerMember] = {}
        for node, brokers in topology.brokers.items():
            neighbours = topology.neighbours[node]
            for name in brokers:
                if topology.is_leaf(node):
                    own = spaces if publishers is None or name in publishers else ()
                    self.leaves[name] = self._leaf(name, neighbours[0], own, aggregation())
                else:
                    self.inner[name] = InnerMember(name, node, neighbours, self.scheduler, aggregation(), patterns_max)
        self.links = [
            self._link(self.member(one), self.member(other))
            for node, brokers in topology.brokers.items()
            for neighbour in topology.neighbours[node]
            if node < neighbour
            for one in brokers
            for other in topology.brokers[neighbour]
        ]

    def _leaf(self, name: str, neighbour: str, spaces: Sequence[Space], aggregation: Aggregation) -> LeafMember:
        return LeafMember(name, neighbour, spaces, self.scheduler, self.dice, aggregation, self.patterns_max)

    def _link(self, one: SimulatedBroker, other: SimulatedBroker) -> SimulatedLink:
        return SimulatedLink(one, other, self.scheduler, self.dice, self._carried)

    def _carried(self, sender: str, receiver: str, packet: Packet) -> None:
        self.on_packet(sender, receiver, packet)

    def member(self, name: str) -> LeafMember | InnerMember:
        """Return a broker by name."""
        return self.leaves.get(name) or self.inner[name]

    def start(self) -> None:
        """Start all brokers and open all links."""
        for member in self.members():
            member.start()
            self.scheduler.after(self.dice.randint(0, TICK_MS), partial(self._tick, member))
        for link in self.links:
            link.open()

    def members(self) -> list[LeafMember | InnerMember]:
        """Return all brokers."""
        return [*self.inner.values(), *self.leaves.values()]

    def crash(self, member: LeafMember | InnerMember, back_after_ms: int) -> None:
        """Kill a broker, and start it again after some time."""
        if not member.is_running:
            return
        member.crash()
        for link in self.links_of(member):
            link.close()
        self.scheduler.after(back_after_ms, lambda: self.restart(member))

    def restart(self, member: LeafMember | InnerMember) -> None:
        """Start a broker again, unless it runs."""
        if not member.is_running:
            member.start()
            for link in self.links_of(member):
                link.reopen_later()

    def links_of(self, member: SimulatedBroker) -> list[SimulatedLink]:
        """Return the links of a broker."""
        return [link for link in self.links if member in link.members]

    def _tick(self, member: SimulatedBroker) -> None:
        member.tick()
        self.scheduler.after(TICK_MS, partial(self._tick, member))


def _count_nothing(_sender: str, _receiver: str, _packet: Packet) -> None:
    """Do nothing."""
