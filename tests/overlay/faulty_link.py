"""A simulated link with faults, and counts of the packets sent."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from broker.overlay.packets import Packet, StreamRun, exceeds
from broker.overlay.simulation.network import Lane, SimulatedLink


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """The probabilities of packet faults while a link is up, its delay, and its capacity."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    least_delay_ms: int = 1
    most_delay_ms: int = 5
    capacity_packets: int = 1_000_000
    """The packets in flight in one direction that make the link full, until half of them have arrived."""


NO_FAULTS = LinkFaults()


class FaultyLink(SimulatedLink):
    """A link that loses, duplicates and delays packets, and can be cut."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.held = False
        self.one_way = ""
        self.faults = NO_FAULTS
        self._under_way: Counter[str] = Counter()  # by sender
        self._full: set[str] = set()

    @property
    def works(self) -> bool:
        """Return whether packets arrive in both directions."""
        return self.is_up and not self.one_way

    def open(self) -> None:
        """Start a session if both brokers run and the link is not cut."""
        if self.held:
            return
        if not self.is_up:
            self.one_way = ""
            self._under_way.clear()
            self._full.clear()
        super().open()

    def cut(self) -> None:
        """End the session, and start none until `held` is cleared."""
        self.held = True
        self.close()

    def send(self, sender: str, packet: Packet) -> None:
        """Send a packet; it is lost if the link is down."""
        if not self.is_up:
            return
        lane = self._lanes[sender]
        self._on_packet(sender, lane.receiver.name, packet)
        if isinstance(packet, StreamRun):
            assert not exceeds(packet, lane.receiver.limit_bytes), "the receiver would close the link for this message"
        faults, roll = self.faults, self._dice.random
        if self.one_way == sender or (faults.drop and roll() < faults.drop):
            return
        self._put(lane, packet)
        if faults.duplicate and roll() < faults.duplicate:
            self._put(lane, packet)

    def _put(self, lane: Lane, packet: Packet) -> None:
        """Schedule the arrival of a packet, at random out of order."""
        faults, sender = self.faults, lane.sender.name
        delay_ms = self._dice.randint(faults.least_delay_ms, faults.most_delay_ms)
        is_late = bool(faults.reorder) and self._dice.random() < faults.reorder
        self._under_way[sender] += 1
        if self._under_way[sender] >= faults.capacity_packets and sender not in self._full:
            self._full.add(sender)
            self._note_full(lane, is_full=True)
        self._deliver(lane, packet, delay_ms, in_order=not is_late)

    def _arrive(self, lane: Lane, packet: Packet, session: int) -> None:
        sender = lane.sender.name
        if session == self._session and self.is_up:
            self._under_way[sender] -= 1
            if sender in self._full and self._under_way[sender] <= self.faults.capacity_packets // 2:
                self._full.discard(sender)
                self._note_full(lane, is_full=False)
        super()._arrive(lane, packet, session)

    def _note_full(self, lane: Lane, *, is_full: bool) -> None:
        sender, receiver = lane.sender, lane.receiver
        if sender.broker is not None:
            sender.broker.full(receiver.node, receiver.name, is_full=is_full)
            if not is_full:
                sender.poll_soon()


@dataclass(slots=True)
class Statistics:
    """Counts of packets by kind, and of stream elements by sender and receiver."""

    packets: Counter[str] = field(default_factory=Counter)
    elements: Counter[tuple[str, str]] = field(default_factory=Counter)

    def count(self, sender: str, receiver: str, packet: Packet) -> None:
        """Count a sent packet."""
        self.packets[type(packet).__name__] += 1
        if isinstance(packet, StreamRun):
            self.elements[sender, receiver] += len(packet.elements)
