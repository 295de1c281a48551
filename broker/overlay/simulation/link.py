"""A simulated link between two brokers: its sessions, delays and faults, and the packets that it carried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from broker.overlay.packets import Packet, StreamRun, exceeds
from broker.overlay.simulation.member import Dice, Scheduler, SimulatedBroker


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """What may happen to a packet while its link is up, as probabilities, and the delay of the link."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    least_delay_ms: int = 1
    most_delay_ms: int = 5
    capacity_packets: int = 1_000_000
    """Packets under way in one direction from which on the link is full, until half of them have arrived."""


NO_FAULTS = LinkFaults()


class Lane:
    """One direction of a link."""

    def __init__(self, sender: SimulatedBroker, receiver: SimulatedBroker) -> None:
        self.sender = sender
        self.receiver = receiver
        self.arrives_ms = 0
        self.under_way = 0
        self.full = False

    def begin(self) -> None:
        """Begin a session: nothing is under way."""
        self.arrives_ms = self.under_way = 0
        self.full = False

    def put(self, at_ms: int, capacity_packets: int, *, in_order: bool) -> int:
        """Put a packet under way that would arrive at a time alone, and return when it arrives."""
        if in_order:
            at_ms = self.arrives_ms = max(at_ms, self.arrives_ms)
        self.under_way += 1
        if self.under_way >= capacity_packets and not self.full:
            self.full = True
            self.sender.full(self.receiver, is_full=True)
        return at_ms

    def take(self, capacity_packets: int) -> None:
        """Take a packet that arrives."""
        self.under_way -= 1
        if self.full and self.under_way <= capacity_packets // 2:
            self.full = False
            self.sender.full(self.receiver, is_full=False)


class SimulatedLink:
    """A link between two brokers. Packets of an earlier session never arrive in a later one."""

    def __init__(
        self, one: SimulatedBroker, other: SimulatedBroker, scheduler: Scheduler, dice: Dice, statistics: Statistics
    ) -> None:
        self._lanes = {one.name: Lane(one, other), other.name: Lane(other, one)}
        self._scheduler = scheduler
        self._dice = dice
        self._statistics = statistics
        self._session = 0
        self.is_up = False
        self.held = False
        self.one_way = ""
        self.faults = NO_FAULTS
        one.senders[other.name] = self.send
        other.senders[one.name] = self.send

    @property
    def members(self) -> tuple[SimulatedBroker, ...]:
        """Return both brokers."""
        return tuple(lane.sender for lane in self._lanes.values())

    @property
    def works(self) -> bool:
        """Return whether packets arrive in both directions."""
        return self.is_up and not self.one_way

    def open(self) -> None:
        """Begin a session, if both brokers run and nothing holds the link down."""
        if self.is_up or self.held or not all(member.is_running for member in self.members):
            return
        self._session += 1
        self.is_up = True
        self.one_way = ""
        for lane in self._lanes.values():
            lane.begin()
        for lane in self._lanes.values():
            lane.receiver.connected(lane.sender, self._session)

    def suffer(self, faults: LinkFaults) -> None:
        """Have these faults from now on."""
        self.faults = faults

    def cut(self) -> None:
        """End the session, and begin none until `release`."""
        self.held = True
        self.close()

    def release(self) -> None:
        """Let the link begin sessions again."""
        self.held = False

    def lose_from(self, sender: str) -> None:
        """Lose all packets of one broker until the session ends."""
        self.one_way = sender

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
        """Begin a session in a while."""
        self._scheduler.after(300 + self._dice.randint(0, 300), self.open)

    def send(self, sender: str, packet: Packet) -> None:
        """Put a packet on the link; it is lost if the link is down."""
        if not self.is_up:
            return
        lane = self._lanes[sender]
        self._statistics.count(sender, lane.receiver.name, packet)
        if isinstance(packet, StreamRun):
            self._statistics.elements[sender, lane.receiver.name] += len(packet.elements)
            assert not exceeds(packet, lane.receiver.limit_bytes), "a receiver ends the link over such a message"
        faults, roll = self.faults, self._dice.random
        if self.one_way == sender or (faults.drop and roll() < faults.drop):
            return
        self._deliver(lane, packet)
        if faults.duplicate and roll() < faults.duplicate:
            self._deliver(lane, packet)

    def _deliver(self, lane: Lane, packet: Packet) -> None:
        faults, now_ms = self.faults, self._scheduler.now_ms
        at_ms = now_ms + self._dice.randint(faults.least_delay_ms, faults.most_delay_ms)
        is_late = faults.reorder and self._dice.random() < faults.reorder
        at_ms = lane.put(at_ms, faults.capacity_packets, in_order=not is_late)
        session = self._session
        self._scheduler.after(at_ms - now_ms, lambda: self._arrive(lane, packet, session))

    def _arrive(self, lane: Lane, packet: Packet, session: int) -> None:
        if session != self._session or not self.is_up:
            return
        lane.take(self.faults.capacity_packets)
        lane.receiver.received(lane.sender, packet)

    def _notice(self, lane: Lane, session: int) -> None:
        if session == self._session:
            lane.receiver.lost(lane.sender)


@dataclass(slots=True)
class Statistics:
    """Packets, and bytes if `size_bytes` measures them, by link and kind of packet."""

    size_bytes: Callable[[Packet], int] | None = None
    packets: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    bytes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    elements: Counter[tuple[str, str]] = field(default_factory=Counter)

    def count(self, sender: str, receiver: str, packet: Packet) -> None:
        """Count a packet that was put on a link."""
        kind = type(packet).__name__
        self.packets[sender, receiver, kind] += 1
        if self.size_bytes is not None:
            self.bytes[sender, receiver, kind] += self.size_bytes(packet)
