"""The common part of leaf and inner brokers: link sessions with their neighbours, and the neighbours' interest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from broker.overlay.interest import Interest
from broker.overlay.packets import NO_LIMIT, Ack, Hello, Nack, Packet, StreamName, StreamRun, UpdateAck
from broker.overlay.peers import Outgoing, OverlayPeer, Peers


@dataclass(frozen=True, slots=True)
class Timing:
    """The intervals and limits of one broker of an overlay."""

    silence_ms: int = 100
    """The longest time that an inner broker delays the announcement of unwanted numbers."""

    ack_ms: int = 100
    stall_ms: int = 400
    """How long acks may make no progress before the publishing leaf sends the stream through another broker of the
    neighbour node, and announces its position on all links."""

    tip_ms: int = 1_000
    """How often a publishing leaf repeats a stream's position while acks make no progress, or while the stream's vector
    differs from the known interest."""

    avoid_ms: int = 10_000
    """How long a leaf avoids brokers through which acks made no progress."""

    vector_ms: int = 100
    """The shortest time between two vector changes of a stream, so that many new bindings share one change."""

    vector_idle_ms: int = 30_000
    """How long a vector change waits for the next message, unless it adds a leaf."""

    forget_ms: int = 10_000
    """How often an inner broker drops streams that were idle since the last check and are not needed."""

    run_bytes: int = 65_536
    window_bytes: int = 4_194_304
    """The most bytes in flight to a leaf in answer to its requests, over all streams."""

    burst_runs: int = 16
    """The most runs of a stream between two polls of the output."""

    waiting_bytes: int = 16_777_216
    """The most bytes that the sinks of a leaf together buffer out of order."""


class LogicalBroker:
    """One broker of the overlay at its place in the tree.

    Call `take_output` after each event and each tick, and send its result in order on each link.
    """

    def __init__(self, interest: Interest, neighbours: Sequence[str], timing: Timing | None) -> None:
        self.interest = interest
        self.peers = Peers(neighbours, interest)
        self._timing = timing or Timing()
        self._output: list[Outgoing] = []
        self._has_updates = True
        self._ack_ms = 0

    def connected(self, node: str, broker: str, session: int, now_ms: int, limit_bytes: int = NO_LIMIT) -> None:
        """Begin a session with a broker that accepts messages up to `limit_bytes`; announce the streams' positions."""
        self.interest.connected(node, broker, session)
        self._has_updates = True
        self._announce_positions(self.peers.connected(node, broker, limit_bytes))

    def lost(self, node: str, broker: str, now_ms: int) -> None:
        self.interest.lost(node, broker, now_ms)
        self._has_updates = True
        self.peers.lost(node, broker)

    def full(self, node: str, broker: str, *, is_full: bool) -> None:
        """Record whether the buffer of a link is full. Once it is not, announce the positions of skipped streams."""
        peer = self.peers.find(node, broker)
        if peer is None:
            return
        for stream in peer.set_full(is_full):
            self._announce_position(stream, peer)

    def received(self, node: str, broker: str, packet: Packet, now_ms: int) -> None:
        """Process a packet from the broker of a link session."""
        if isinstance(packet, StreamRun):
            self._receive_run(node, packet, now_ms)
        elif isinstance(packet, Ack):
            if packet.serial == self.interest.applied(node, broker):
                self._receive_ack(packet, self.interest.interested(node, broker, packet.stream.space))
        elif isinstance(packet, Nack):
            self._receive_nack(node, broker, packet)
        elif not isinstance(packet, Hello):
            self.interest.received(node, broker, packet, now_ms)
            self._has_updates = True
            if not isinstance(packet, UpdateAck):
                self._review(now_ms)

    @abstractmethod
    def _announce_positions(self, peer: OverlayPeer) -> None:
        """Announce, on a new link, the positions of streams of which a leaf may miss a part."""

    @abstractmethod
    def _announce_position(self, stream: StreamName, peer: OverlayPeer) -> None:
        """Announce the position of a stream to a broker whose link has skipped runs of it."""

    @abstractmethod
    def _review(self, now_ms: int) -> None:
        """Update the streams after a possible change of the known interest."""

    @abstractmethod
    def _receive_run(self, node: str, run: StreamRun, now_ms: int) -> None:
        """Process a run of a stream."""

    @abstractmethod
    def _receive_ack(self, ack: Ack, leaves: Collection[str]) -> None:
        """Record that leaves have received a stream up to a number."""

    @abstractmethod
    def _receive_nack(self, node: str, broker: str, nack: Nack) -> None:
        """Answer a request for numbers of a stream, or forward it."""

    def _take_updates(self, now_ms: int) -> list[Outgoing]:
        """Return the announcements to send, and the answers to received ones."""
        if not self._has_updates:
            return []
        self._has_updates = False
        return self.interest.take_output(now_ms)

    def _acks_are_due(self, now_ms: int) -> bool:
        """Return whether it is time to send acks; if so, they are next due after `ack_ms`."""
        if now_ms < self._ack_ms + self._timing.ack_ms:
            return False
        self._ack_ms = now_ms
        return True

    def _send_ack(self, stream: StreamName, number: int, node: str, output: list[Outgoing]) -> None:
        """Send an ack, with the serial of the last update, to each broker of a node that was sent all updates."""
        for peer in self.peers.live(node):
            serial = self.interest.announced(node, peer.broker)
            if serial:
                output.append((node, peer.broker, Ack(stream, number, serial)))
