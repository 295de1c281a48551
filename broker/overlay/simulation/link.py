"""A simulated link between two brokers: its sessions and its delays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.overlay.packets import Packet
from broker.overlay.simulation.member import Dice, Scheduler, SimulatedBroker


@dataclass(slots=True)
class Lane:
    """One direction of a link, whose packets arrive in order."""

    sender: SimulatedBroker
    receiver: SimulatedBroker
    arrives_ms: int = 0

    def begin(self) -> None:
        """Begin a session: nothing is under way."""
        self.arrives_ms = 0

    def put(self, at_ms: int, *, in_order: bool) -> int:
        """Return when a packet arrives that would arrive at a time alone."""
        if in_order:
            at_ms = self.arrives_ms = max(at_ms, self.arrives_ms)
        return at_ms


class SimulatedLink:
    """A link between two brokers. Packets of an earlier session never arrive in a later one.

    Shapes: `carried` is called with sender, receiver and packet for each packet that is put on the link.
    Units: a packet takes from `least_delay_ms` to `most_delay_ms`.
    """

    def __init__(
        self,
        one: SimulatedBroker,
        other: SimulatedBroker,
        scheduler: Scheduler,
        dice: Dice,
        carried: Callable[[str, str, Packet], None],
    ) -> None:
        self._lanes = {one.name: Lane(one, other), other.name: Lane(other, one)}
        self._scheduler = scheduler
        self._dice = dice
        self._carried = carried
        self._session = 0
        self.is_up = False
        self.least_delay_ms, self.most_delay_ms = 1, 5
        one.senders[other.name] = self.send
        other.senders[one.name] = self.send

    @property
    def members(self) -> tuple[SimulatedBroker, ...]:
        """Both brokers."""
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
        """Put a packet on the link; it is lost if the link is down."""
        if self.is_up:
            lane = self._lanes[sender]
            self._carried(sender, lane.receiver.name, packet)
            self._deliver(lane, packet, self._dice.randint(self.least_delay_ms, self.most_delay_ms))

    def _deliver(self, lane: Lane, packet: Packet, delay_ms: int, *, in_order: bool = True) -> None:
        now_ms, session = self._scheduler.now_ms, self._session
        at_ms = lane.put(now_ms + delay_ms, in_order=in_order)
        self._scheduler.after(at_ms - now_ms, lambda: self._arrive(lane, packet, session))

    def _arrive(self, lane: Lane, packet: Packet, session: int) -> None:
        if session == self._session and self.is_up:
            lane.receiver.received(lane.sender, packet)

    def _notice(self, lane: Lane, session: int) -> None:
        if session == self._session:
            lane.receiver.lost(lane.sender)
