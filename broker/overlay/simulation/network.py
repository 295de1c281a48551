"""A simulated overlay: a tree of brokers with links, on simulated time."""

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
from broker.overlay.simulation.member import Dice, Scheduler, SimulatedBroker

TICK_MS = 50


@dataclass(frozen=True, slots=True)
class SimulatedTree:
    """The brokers of each tree node, and its neighbours in the tree. The names of leaf nodes start with "leaf"."""

    brokers: Mapping[str, tuple[str, ...]]
    neighbours: Mapping[str, tuple[str, ...]]

    @property
    def leaves(self) -> tuple[str, ...]:
        return tuple(self.brokers[node][0] for node in self.brokers if self.is_leaf(node))

    def is_leaf(self, node: str) -> bool:
        return node.startswith("leaf")


@dataclass(slots=True)
class Lane:
    """One direction of a link, whose packets arrive in order unless a test delays one."""

    sender: SimulatedBroker
    receiver: SimulatedBroker
    arrives_ms: int = 0

    def begin(self) -> None:
        """Begin a session: no packet is in flight."""
        self.arrives_ms = 0

    def arrival_ms(self, at_ms: int, *, in_order: bool) -> int:
        """Return when a packet that is due at a time arrives: if `in_order`, not before the packets sent earlier."""
        if in_order:
            at_ms = self.arrives_ms = max(at_ms, self.arrives_ms)
        return at_ms


class SimulatedLink:
    """A link between two brokers. Packets of an earlier session never arrive in a later one.

    Shapes: `on_packet` is called with sender, receiver and packet for each packet that is sent over the link.
    Units: the delay of a packet is from `least_delay_ms` to `most_delay_ms`.
    """

    def __init__(
        self,
        one: SimulatedBroker,
        other: SimulatedBroker,
        scheduler: Scheduler,
        dice: Dice,
        on_packet: Callable[[str, str, Packet], None],
    ) -> None:
        self._lanes = {one.name: Lane(one, other), other.name: Lane(other, one)}
        self._scheduler = scheduler
        self._dice = dice
        self._on_packet = on_packet
        self._session = 0
        self.is_up = False
        self.least_delay_ms, self.most_delay_ms = 1, 5
        one.senders[other.name] = self.send
        other.senders[one.name] = self.send

    @property
    def members(self) -> tuple[SimulatedBroker, ...]:
        return tuple(lane.sender for lane in self._lanes.values())

    def open(self) -> None:
        """Begin a session, if both brokers run."""
        if self.is_up or not all(member.is_running for member in self.members):
            return
        self._session += 1
        self.is_up = True
        for lane in self._lanes.values():
            lane.begin()
        for lane in self._lanes.values():
            lane.receiver.connected(lane.sender, self._session)

    def close(self) -> None:
        """End the session; the second broker notices later."""
        if not self.is_up:
            return
        self.is_up = False
        first, second = self._lanes.values()
        session = self._session
        first.receiver.lost(first.sender)
        self._scheduler.after(self._dice.randint(0, 200), lambda: self._notice(second, session))

    def reopen_later(self) -> None:
        """Begin a session after a random delay."""
        self._scheduler.after(300 + self._dice.randint(0, 300), self.open)

    def send(self, sender: str, packet: Packet) -> None:
        """Send a packet over the link; it is lost if the link is down."""
        if self.is_up:
            lane = self._lanes[sender]
            self._on_packet(sender, lane.receiver.name, packet)
            self._deliver(lane, packet, self._dice.randint(self.least_delay_ms, self.most_delay_ms))

    def _deliver(self, lane: Lane, packet: Packet, delay_ms: int, *, in_order: bool = True) -> None:
        now_ms, session = self._scheduler.now_ms, self._session
        at_ms = lane.arrival_ms(now_ms + delay_ms, in_order=in_order)
        self._scheduler.after(at_ms - now_ms, lambda: self._arrive(lane, packet, session))

    def _arrive(self, lane: Lane, packet: Packet, session: int) -> None:
        if session == self._session and self.is_up:
            lane.receiver.received(lane.sender, packet)

    def _notice(self, lane: Lane, session: int) -> None:
        if session == self._session:
            lane.receiver.lost(lane.sender)


class InnerMember(SimulatedBroker):
    """A simulated inner broker. A crash loses all its state."""

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
        interest = Interest(self.node, self._neighbours, self._aggregation, self._patterns_max)
        self.broker = Inner(interest, self._neighbours)

    @property
    def counts(self) -> ForwardingCounts:
        """The broker's forwarding counts since its start."""
        assert isinstance(self.broker, Inner)
        return self.broker.counts


class Network:
    """All brokers of a topology in one process, on simulated time.

    The exchanges of the spaces exist at the leaves named in `publishers`, or at all leaves if it is None. `on_packet`
    is called with sender, receiver and packet for each packet that is sent over a link.
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
        self.on_packet: Callable[[str, str, Packet], None] = lambda _sender, _receiver, _packet: None
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
        return SimulatedLink(one, other, self.scheduler, self.dice, self._on_packet)

    def _on_packet(self, sender: str, receiver: str, packet: Packet) -> None:
        self.on_packet(sender, receiver, packet)

    def member(self, name: str) -> LeafMember | InnerMember:
        return self.leaves.get(name) or self.inner[name]

    def start(self) -> None:
        """Start all brokers and open all links."""
        for member in self.members():
            member.start()
            self.scheduler.after(self.dice.randint(0, TICK_MS), partial(self._tick, member))
        for link in self.links:
            link.open()

    def members(self) -> list[LeafMember | InnerMember]:
        return [*self.inner.values(), *self.leaves.values()]

    def crash(self, member: LeafMember | InnerMember, back_after_ms: int) -> None:
        """Crash a broker, and restart it after `back_after_ms`."""
        if not member.is_running:
            return
        member.crash()
        for link in self.links_of(member):
            link.close()
        self.scheduler.after(back_after_ms, lambda: self.restart(member))

    def restart(self, member: LeafMember | InnerMember) -> None:
        """Restart a broker that has crashed."""
        if not member.is_running:
            member.start()
            for link in self.links_of(member):
                link.reopen_later()

    def links_of(self, member: SimulatedBroker) -> list[SimulatedLink]:
        return [link for link in self.links if member in link.members]

    def _tick(self, member: SimulatedBroker) -> None:
        member.tick()
        self.scheduler.after(TICK_MS, partial(self._tick, member))
