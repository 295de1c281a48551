"""An inner broker: it has no clients, and forwards streams between its neighbour tree nodes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from broker.overlay.forwarding import Forwarding, ForwardingCounts
from broker.overlay.interest import Interest
from broker.overlay.logical_broker import LogicalBroker, Timing
from broker.overlay.packets import Ack, Nack, StreamName, StreamRun
from broker.overlay.peers import Outgoing, OverlayPeer
from broker.overlay.progress import LaggingStream
from broker.overlay.sink import WHOLE_STREAM


class Inner(LogicalBroker):
    """One logical inner broker. Its state is only in memory; after a restart, its neighbours resend what it needs."""

    def __init__(self, interest: Interest, neighbours: tuple[str, ...], timing: Timing | None = None) -> None:
        super().__init__(interest, neighbours, timing)
        self.forwardings: dict[StreamName, Forwarding] = {}
        self.counts = ForwardingCounts()
        self._dirty: set[StreamName] = set()
        self._silent: set[StreamName] = set()
        self._forget_ms = 0

    def tick(self, now_ms: int) -> None:
        """Announce the unwanted numbers that have waited for `silence_ms`, and drop streams that are not needed."""
        self._has_updates = True
        for stream in list(self._silent):
            forwarding = self.forwardings[stream]
            for node in forwarding.overdue(now_ms - self._timing.silence_ms):
                self._forward(forwarding, node, forwarding.flush(node))
            if not forwarding.unwanted:
                self._silent.discard(stream)
        if now_ms >= self._forget_ms + self._timing.forget_ms:
            self._forget_ms = now_ms
            self._forget_streams()

    def take_output(self, now_ms: int) -> list[Outgoing]:
        output = self._take_updates(now_ms)
        output += self._output
        self._output = []
        if self._dirty and self._acks_are_due(now_ms):
            self._ack(output)
        return output

    def _review(self, now_ms: int) -> None:
        """Do nothing: the interest is looked up when a run is forwarded."""

    def _receive_run(self, node: str, run: StreamRun, now_ms: int) -> None:
        forwarding = self._forwarding(run.stream)
        forwarding.record(run, node)
        target = self.interest.direction(run.target) if run.target else None
        for towards in self.peers.nodes:
            if towards != node and (target is None or target == towards):
                runs = forwarding.forward(run, towards, self.interest, self.counts, now_ms)
                self._forward(forwarding, towards, runs)
        if forwarding.unwanted:
            self._silent.add(run.stream)

    def _receive_ack(self, ack: Ack, leaves: Collection[str]) -> None:
        self._forwarding(ack.stream).acks.credit(leaves, ack.number)
        self._dirty.add(ack.stream)
        for leaf in leaves:
            node = self.interest.direction(leaf)
            peer = None if node is None else self.peers.find(node, leaf)
            lagging = None if peer is None else peer.lagging.get(ack.stream)
            if peer is not None and lagging is not None and lagging.has_caught_up(ack.number):
                del peer.lagging[ack.stream]

    def _receive_nack(self, node: str, broker: str, nack: Nack) -> None:
        asking = self.peers.find(node, broker)
        lagging = None if asking is None or nack.leaf != broker else asking.lagging.get(nack.stream)
        if lagging is not None and 0 < nack.first < WHOLE_STREAM:
            lagging.mark_requested()
            nack = replace(nack, last=WHOLE_STREAM)
        towards = self._upstream(nack.stream)
        peer = None if towards is None or towards == node else self.peers.towards(towards, nack.stream.leaf)
        if peer is not None:
            self._output.append((peer.node, peer.broker, nack))

    def _forward(self, forwarding: Forwarding, node: str, runs: list[StreamRun]) -> None:
        for run in runs:
            vector = forwarding.vectors.get(run.vector_at) if run.vector is None else run.vector
            if run.target:
                peer = self.peers.towards(node, run.target)
                if peer is not None:
                    peer.send(run, vector, self._output)
                continue
            is_tip = run.last < run.first
            for peer in self.peers.live(node) if is_tip else self.peers.chosen(run.stream, node):
                peer.send(run, vector, self._output)

    def _announce_positions(self, peer: OverlayPeer) -> None:
        for stream in self.forwardings:
            self._announce_position(stream, peer)

    def _announce_position(self, stream: StreamName, peer: OverlayPeer) -> None:
        """Announce the position of a stream on a link beyond which a leaf may miss part of it."""
        node, forwarding = peer.node, self.forwardings.get(stream)
        if forwarding is None or not forwarding.reached or forwarding.source_node in {"", node}:
            return
        if not forwarding.concerns(node, self.interest):
            return
        least = forwarding.acks.least(self.interest.vector(node, stream.space))
        if least is None or least < forwarding.reached:
            if peer.broker in self.interest.leaves(node):
                peer.lagging.setdefault(stream, LaggingStream(forwarding.reached))
            tip = forwarding.tip()
            peer.send(tip, tip.vector, self._output)

    def _upstream(self, stream: StreamName) -> str | None:
        """Return the tree node through which the publishing leaf of a stream is reached, or None if unknown."""
        node = self.interest.direction(stream.leaf)
        if node is None and stream in self.forwardings:
            return self.forwardings[stream].source_node or None
        return node

    def _ack(self, output: list[Outgoing]) -> None:
        """Send upstream the position that all interested leaves have reached, after the updates that name them."""
        for stream in self._dirty:
            up = self._upstream(stream)
            if up is None:
                continue
            leaves = {
                leaf for node in self.peers.nodes if node != up for leaf in self.interest.vector(node, stream.space)
            }
            number = self.forwardings[stream].acks.least(leaves)
            if number:
                self._send_ack(stream, number, up, output)
        self._dirty.clear()

    def _forget_streams(self) -> None:
        """Drop streams that were idle since the last call if they have no publisher, no interested leaf, or another
        incarnation that is busy. If a dropped stream resumes, its vector is sent again. Cost: O(streams).
        """
        busy = {(stream.leaf, stream.space) for stream, entry in self.forwardings.items() if not entry.is_idle}
        for stream, forwarding in list(self.forwardings.items()):
            if not forwarding.is_idle or stream in self._dirty or forwarding.unwanted:
                forwarding.mark_idle()
                continue
            up, interest = self._upstream(stream), self.interest
            has_ended = (stream.leaf, stream.space) in busy or interest.direction(stream.leaf) is None
            if has_ended or not any(interest.vector(node, stream.space) for node in self.peers.nodes if node != up):
                del self.forwardings[stream]
                self.peers.forget(stream)

    def _forwarding(self, stream: StreamName) -> Forwarding:
        forwarding = self.forwardings.get(stream)
        if forwarding is None:
            forwarding = self.forwardings[stream] = Forwarding(stream)
        return forwarding
