"""An inner broker: it has no clients, and forwards streams between its neighbour tree nodes."""

from __future__ import annotations

from broker.overlay.forwarding import Forwarding, ForwardingCounts
from broker.overlay.interest import Interest
from broker.overlay.packets import Ack, Hello, Nack, Packet, Resync, StreamName, StreamRun, Update, UpdateAck
from broker.overlay.peers import Outgoing, OverlayPeer, Peers
from broker.overlay.timing import Timing


class Inner:
    """One logical inner broker. All it knows is lost with its process, and is told again.

    Call `take_output` after each event and each tick, and send what it returns in order on each link.
    """

    __slots__ = (
        "_ack_ms",
        "_dirty",
        "_forwardings",
        "_interest",
        "_output",
        "_peers",
        "_silent",
        "_timing",
        "_untold",
        "counts",
    )

    def __init__(self, interest: Interest, neighbours: tuple[str, ...], timing: Timing | None = None) -> None:
        self._interest = interest
        self._timing = timing or Timing()
        self._peers = Peers(neighbours, interest)
        self._forwardings: dict[StreamName, Forwarding] = {}
        self._output: list[Outgoing] = []
        self._dirty: set[StreamName] = set()
        self._silent: set[StreamName] = set()
        self._ack_ms = 0
        self._untold = False
        self.counts = ForwardingCounts()

    @property
    def interest(self) -> Interest:
        """Return what this broker knows of the interest of others."""
        return self._interest

    @property
    def peers(self) -> Peers:
        """Return the link sessions."""
        return self._peers

    @property
    def forwardings(self) -> dict[StreamName, Forwarding]:
        """Return the streams that pass here, by name."""
        return self._forwardings

    def connected(self, node: str, broker: str, session: int, now_ms: int) -> None:
        """Begin a link session, and say on it how far each stream has got."""
        self._interest.connected(node, broker, session)
        self._untold = True
        peer = self._peers.connected(node, broker)
        for forwarding in self._forwardings.values():
            self._tell(forwarding, peer)

    def lost(self, node: str, broker: str, now_ms: int) -> None:
        """End a link session."""
        self._interest.lost(node, broker, now_ms)
        self._untold = True
        self._peers.lost(node, broker)

    def full(self, node: str, broker: str, *, is_full: bool) -> None:
        """Note that the buffer of a link is full, or is not any more: then say how far the streams have got."""
        peer = self._peers.find(node, broker)
        if peer is None:
            return
        peer.full = is_full
        if not is_full:
            skipped, peer.skipped = peer.skipped, set()
            for stream in skipped:
                forwarding = self._forwardings.get(stream)
                if forwarding is not None:
                    self._tell(forwarding, peer)

    def received(self, node: str, broker: str, packet: Packet, now_ms: int) -> None:
        """Take a packet from a broker that a link session leads to."""
        if isinstance(packet, StreamRun):
            self._run(node, packet, now_ms)
        elif isinstance(packet, Ack):
            if packet.serial == self._interest.applied(node, broker):
                leaves = self._interest.interested(node, broker, packet.stream.space)
                self._forwarding(packet.stream).acks.credit(leaves, packet.number)
                self._dirty.add(packet.stream)
        elif isinstance(packet, Nack):
            self._pass_nack(node, packet)
        elif isinstance(packet, Update | UpdateAck | Resync):
            self._interest.received(node, broker, packet, now_ms)
            self._untold = True
        else:
            assert isinstance(packet, Hello)

    def tick(self, now_ms: int) -> None:
        """Announce silence that has waited long enough, and what has to be repeated."""
        self._untold = True
        for stream in list(self._silent):
            forwarding = self._forwardings[stream]
            for node in forwarding.overdue(now_ms - self._timing.silence_ms):
                self._forward(forwarding, node, forwarding.flush(node))
            if not forwarding.silences:
                self._silent.discard(stream)

    def take_output(self, now_ms: int) -> list[Outgoing]:
        """Return the packets to send."""
        output: list[Outgoing] = []
        if self._untold:
            self._untold = False
            output = self._interest.take_output(now_ms)
        output += self._output
        self._output = []
        if self._dirty and now_ms >= self._ack_ms + self._timing.ack_ms:
            self._ack_ms = now_ms
            self._ack(output)
        return output

    def _run(self, node: str, run: StreamRun, now_ms: int) -> None:
        forwarding = self._forwarding(run.stream)
        forwarding.learn(run, node)
        target = self._interest.direction(run.target) if run.target else None
        for towards in self._peers.nodes:
            if towards != node and (target is None or target == towards):
                runs = forwarding.forward(run, towards, self._interest, self.counts, now_ms)
                self._forward(forwarding, towards, runs)
        if forwarding.silences:
            self._silent.add(run.stream)

    def _forward(self, forwarding: Forwarding, node: str, runs: list[StreamRun]) -> None:
        for run in runs:
            vector = forwarding.vectors.get(run.vector_at) if run.vector is None else run.vector
            if run.target:
                peer = self._peers.towards(node, run.target)
                if peer is not None:
                    peer.send(run, vector, self._output)
                continue
            is_tip = run.last < run.first
            for peer in self._peers.live(node) if is_tip else self._peers.chosen(run.stream, node):
                peer.send(run, vector, self._output)

    def _tell(self, forwarding: Forwarding, peer: OverlayPeer) -> None:
        """Say on a link how far a stream has got, if it came from elsewhere and somebody there may lack something."""
        node = peer.node
        if not forwarding.reached or forwarding.came_from in {"", node}:
            return
        if not forwarding.concerns(node, self._interest):
            return
        least = forwarding.acks.least(self._interest.vector(node, forwarding.stream.space))
        if least is None or least < forwarding.reached:
            tip = forwarding.tip()
            peer.send(tip, tip.vector, self._output)

    def _pass_nack(self, node: str, nack: Nack) -> None:
        towards = self._upstream(nack.stream)
        peer = None if towards is None or towards == node else self._peers.any_of(towards)
        if peer is not None:
            self._output.append((peer.node, peer.broker, nack))

    def _upstream(self, stream: StreamName) -> str | None:
        """Return the tree node behind which the leaf is that publishes a stream."""
        node = self._interest.direction(stream.leaf)
        if node is None and stream in self._forwardings:
            return self._forwardings[stream].came_from or None
        return node

    def _ack(self, output: list[Outgoing]) -> None:
        """Send upstream what all interested leaves have. The updates that say which leaves these are come first."""
        for stream in self._dirty:
            up = self._upstream(stream)
            if up is None:
                continue
            leaves = {
                leaf for node in self._peers.nodes if node != up for leaf in self._interest.vector(node, stream.space)
            }
            number = self._forwardings[stream].acks.least(leaves)
            if number:
                for peer in self._peers.live(up):
                    serial = self._interest.announced(up, peer.broker)
                    if serial:
                        output.append((up, peer.broker, Ack(stream, number, serial)))
        self._dirty.clear()

    def _forwarding(self, stream: StreamName) -> Forwarding:
        forwarding = self._forwardings.get(stream)
        if forwarding is None:
            forwarding = self._forwardings[stream] = Forwarding(stream)
        return forwarding
