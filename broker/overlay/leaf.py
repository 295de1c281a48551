"""A leaf broker: it publishes its clients' messages as streams, and delivers the streams of others to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from broker.overlay.interest import Interest
from broker.overlay.packets import (
    Ack,
    Conjunction,
    Hello,
    Nack,
    Packet,
    Resync,
    Space,
    StreamName,
    StreamRun,
    Update,
    UpdateAck,
)
from broker.overlay.peers import Outgoing, Peers
from broker.overlay.sink import ByteBudget, Delivery, Sink, StreamGap
from broker.overlay.source import StreamSource
from broker.overlay.start_points import StartPoints
from broker.overlay.stream_log import StreamLog
from broker.overlay.timing import Timing

EVERYTHING = frozenset({"#"})


@dataclass(frozen=True, slots=True)
class LeafState:
    """What a leaf must find again after a crash.

    `time_bound` is above all virtual times that were ever sent, `start_points` those of the durable bindings, and
    `positions` the number of the last committed delivery of each stream.
    """

    time_bound: int = 0
    start_points: Mapping[str, int] = field(default_factory=dict)
    positions: Mapping[StreamName, int] = field(default_factory=dict)


class Leaf:
    """One logical leaf broker with a single neighbour tree node.

    Call `take_output` after each event and each tick; persist `state` before the packets are sent, if bindings changed.
    Take bindings, deliveries and gaps whenever packets have been received or time has passed.

    The first call of `bindings_changed` brings all bindings that were recovered.
    """

    __slots__ = (
        "_ack_ms",
        "_bound",
        "_budget",
        "_changed_ms",
        "_deferred",
        "_deliveries",
        "_interest",
        "_log",
        "_name",
        "_node",
        "_open_nacks",
        "_output",
        "_peers",
        "_reviewed",
        "_seen",
        "_sinks",
        "_sources",
        "_start_points",
        "_state",
        "_timing",
        "_tip_ms",
        "_told",
        "_untold",
        "_waiting",
        "_wanted_bindings",
        "gaps",
        "has_more",
    )

    def __init__(
        self,
        name: str,
        neighbour: str,
        interest: Interest,
        log: StreamLog,
        state: LeafState | None = None,
        timing: Timing | None = None,
    ) -> None:
        self._name = name
        self._node = neighbour
        self._interest = interest
        self._log = log
        self._state = state or LeafState()
        self._timing = timing or Timing()
        self._peers = Peers((neighbour,), interest)
        self._budget = ByteBudget(self._timing.waiting_bytes)
        self._start_points = StartPoints(self._state.start_points)
        self._sinks: dict[StreamName, Sink] = {
            stream: Sink(name, stream, position, self._budget) for stream, position in self._state.positions.items()
        }
        self._sources: dict[Space, StreamSource] = {}
        self._bound: dict[Space, frozenset[str]] = {}
        self._output: list[Outgoing] = []
        self._deliveries: list[Delivery] = []
        self._open_nacks: list[tuple[str, str, Nack]] = []
        self._seen: set[str] = set()
        self._waiting: set[Space] = set()
        self._reviewed = -1
        self._deferred: set[Space] = set()
        self._changed_ms: dict[Space, int] = {}
        self._told: dict[Space, int] = {}
        self._ack_ms = self._tip_ms = 0
        self._untold = True
        self._wanted_bindings: dict[Space, frozenset[str]] = {}
        self.gaps: list[StreamGap] = []
        self.has_more = False
        for space in log.spaces():
            self.space_opened(space, 0)

    @property
    def interest(self) -> Interest:
        """Return what this broker knows of the interest of others."""
        return self._interest

    @property
    def peers(self) -> Peers:
        """Return the link sessions."""
        return self._peers

    @property
    def sources(self) -> Mapping[Space, StreamSource]:
        """Return the streams that this leaf publishes."""
        return self._sources

    @property
    def sinks(self) -> Mapping[StreamName, Sink]:
        """Return the streams that this leaf receives."""
        return self._sinks

    # ---- links -------------------------------------------------------------------------------------------------------

    def connected(self, node: str, broker: str, session: int, now_ms: int) -> None:
        """Begin a link session."""
        self._interest.connected(node, broker, session)
        self._untold = True
        self._peers.connected(node, broker)
        for source in self._sources.values():
            self._tip(source)

    def lost(self, node: str, broker: str, now_ms: int) -> None:
        """End a link session; the streams that went there go elsewhere, and say how far they have got."""
        self._interest.lost(node, broker, now_ms)
        self._untold = True
        self._peers.lost(node, broker)
        for source in self._sources.values():
            self._tip(source)

    def full(self, node: str, broker: str, *, is_full: bool) -> None:
        """Note that the buffer of a link is full, or is not any more."""
        peer = self._peers.find(node, broker)
        if peer is None:
            return
        peer.full = is_full
        if not is_full:
            skipped, peer.skipped = peer.skipped, set()
            for stream in skipped:
                self._tip(self._sources[stream.space])

    def received(self, node: str, broker: str, packet: Packet, now_ms: int) -> None:
        """Take a packet from a broker that a link session leads to."""
        if isinstance(packet, StreamRun):
            self._receive_run(packet)
        elif isinstance(packet, Ack):
            source = self._own(packet.stream)
            if source is not None and packet.serial == self._interest.applied(node, broker):
                source.acked(self._interest.interested(node, broker, packet.stream.space), packet.number)
        elif isinstance(packet, Nack):
            self._answer(node, broker, packet)
        elif isinstance(packet, Update | UpdateAck | Resync):
            self._interest.received(node, broker, packet, now_ms)
            self._untold = True
            self._review(now_ms)
        else:
            assert isinstance(packet, Hello)

    def tick(self, now_ms: int) -> None:
        """Ask for what is missing, answer what had to wait for the log, and say how far lagging streams have got."""
        self._untold = True
        for sink in self._sinks.values():
            floor = self._start_points.floor(sink.stream.space)
            nack = sink.nack(floor, now_ms, self._timing.repair_bytes)
            peer = None if nack is None else self._peers.any_of(self._node)
            if nack is not None and peer is not None:
                self._output.append((peer.node, peer.broker, nack))
        deferred, self._deferred = self._deferred, set()
        for space in deferred:
            self._review_space(space, now_ms)
        nacks, self._open_nacks = self._open_nacks, []
        for nack_from in nacks:
            self._answer(*nack_from)
        if now_ms >= self._tip_ms + self._timing.tip_ms:
            self._tip_ms = now_ms
            self._watch()

    def take_output(self, now_ms: int) -> list[Outgoing]:
        """Return the packets to send; with `has_more` call it again once they are written."""
        output: list[Outgoing] = []
        if self._untold:
            self._untold = False
            output = self._interest.take_output(now_ms)
            self._review(now_ms)
        self.has_more = False
        for source in self._sources.values():
            if source.sent < source.last:
                self._pump(source)
        output += self._output
        self._output = []
        if now_ms >= self._ack_ms + self._timing.ack_ms:
            self._ack_ms = now_ms
            self._ack(output)
        return output

    # ---- the streams that clients here publish -----------------------------------------------------------------------

    def space_opened(self, space: Space, now_ms: int) -> None:
        """Note that the exchange of a space exists here; it may have a stream already."""
        if space not in self._sources:
            self._sources[space] = StreamSource(StreamName(self._name, space), self._log)
            self._review_space(space, now_ms)

    def stream_grew(self, space: Space) -> None:
        """Note that more numbers of a stream are durable; `take_output` has them."""

    def take_bindings(self) -> list[tuple[Space, frozenset[str], frozenset[str]]]:
        """Return the changes of the bindings of the own streams: space, patterns to add first, and to remove.

        Apply them before anything else is published.
        """
        changes: list[tuple[Space, frozenset[str], frozenset[str]]] = []
        for space, wanted in self._wanted_bindings.items():
            bound = self._bound.get(space, frozenset())
            if wanted != bound:
                changes.append((space, wanted - bound, bound - wanted))
                self._bound[space] = wanted
        self._wanted_bindings = {}
        return changes

    def forget(self, leaf: str, now_ms: int) -> None:
        """Give up a leaf that is away for good."""
        self._interest.forget(leaf)
        self._changed_ms.clear()
        for space in self._sources:
            self._review_space(space, now_ms, (leaf,))

    # ---- the bindings of clients here, and what they get -------------------------------------------------------------

    def bindings_changed(self, added: Iterable[tuple[str, Conjunction, bool]], removed: Iterable[str]) -> None:
        """Apply a batch: bindings with conjunction and durable flag, and bindings that are gone."""
        came, gone = list(added), list(removed)
        self._interest.change(came, gone)
        self._untold = True
        self._start_points.change(came, gone, self._interest.vst)

    def start_point(self, binding: str) -> int:
        """Return the virtual time from which on a binding gets what matches."""
        return self._start_points.of(binding)

    def take_deliveries(self) -> list[Delivery]:
        """Return the messages to publish here, in the order of each stream."""
        deliveries, self._deliveries = self._deliveries, []
        return deliveries

    def take_gaps(self) -> list[StreamGap]:
        """Return the gaps that were found since the last call, to log."""
        gaps, self.gaps = self.gaps, []
        return gaps

    def committed(self, stream: StreamName, number: int) -> None:
        """Note that all deliveries of a stream up to a number are durable here."""
        self._sinks[stream].committed(number)

    def state(self) -> LeafState:
        """Return what must survive a crash."""
        positions = {stream: sink.committed_upto for stream, sink in self._sinks.items() if sink.committed_upto}
        return LeafState(self._interest.time_bound, self._start_points.durable(), positions)

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _receive_run(self, run: StreamRun) -> None:
        stream = run.stream
        if stream.leaf == self._name:
            return
        sink = self._sinks.get(stream)
        floor = self._start_points.floor(stream.space)
        if sink is None:
            if floor is None:
                return
            sink = self._sinks[stream] = Sink(self._name, stream, None, self._budget)
        self._deliveries += sink.received(run, floor, self._start_points.ceiling(stream.space))
        if sink.gaps:
            self.gaps += sink.gaps
            sink.gaps = []

    def _own(self, stream: StreamName) -> StreamSource | None:
        return self._sources.get(stream.space) if stream.leaf == self._name else None

    def _review(self, now_ms: int) -> None:
        """Review the streams whose interest has changed, and those that wait to hear of a leaf."""
        touched = self._interest.take_touched()
        if self._waiting and self._reviewed != self._interest.version:
            touched |= self._waiting
        self._reviewed = self._interest.version
        for space in touched:
            self._review_space(space, now_ms)

    def _review_space(self, space: Space, now_ms: int, given_up: tuple[str, ...] = ()) -> None:
        """Bring the vector and the bindings of a stream up to date with what is known of the interest of others.

        The bindings may be ahead of the vector, so a vector that changes again and again waits a little.
        """
        source = self._sources.get(space)
        if source is None:
            return
        interest, node = self._interest, self._node
        known = interest.vector(node, space)
        self._seen.update(known)
        withdrawn = [leaf for leaf in source.vector if leaf in self._seen and interest.direction(leaf) is None]
        if now_ms < self._changed_ms.get(space, -self._timing.vector_ms) + self._timing.vector_ms:
            self._deferred.add(space)
        elif source.review(known, self._is_left, {*withdrawn, *given_up}) is not None:
            self._changed_ms[space] = now_ms
            source.trim()
        enough = interest.sufficient(node, space, source.vector)
        (self._waiting.discard if source.vector == known else self._waiting.add)(space)
        self._wanted_bindings[space] = frozenset(interest.roots(node, space)) if enough else EVERYTHING

    def _is_left(self, leaf: str, virtual_time: int) -> bool:
        """Return whether enough is known of a leaf to believe that it has no interest."""
        return self._interest.direction(leaf) is not None and self._interest.time(leaf) >= virtual_time

    def _pump(self, source: StreamSource) -> None:
        """Send runs of a stream, unless a link that they go over is full."""
        for _ in range(self._timing.burst_runs):
            peers = list(self._peers.chosen(source.stream, self._node))
            if not peers or any(peer.full for peer in peers):
                return
            run = source.run(self._timing.run_bytes)
            if run is None:
                return
            for peer in peers:
                peer.send(run, run.vector, self._output)
        self.has_more |= source.sent < source.last

    def _tip(self, source: StreamSource) -> None:
        """Say how far a stream has got, unless all have it."""
        if source.needed_from() <= source.sent:
            tip = source.tip()
            for peer in self._peers.live(self._node):
                peer.send(tip, tip.vector, self._output)

    def _watch(self) -> None:
        """Drop what nobody needs, and send tips of streams whose acks did not move for a while."""
        for space, source in self._sources.items():
            source.trim()
            needed = source.needed_from()
            if needed <= source.sent and self._told.get(space) == needed:
                self._tip(source)
            self._told[space] = needed

    def _answer(self, node: str, broker: str, nack: Nack) -> None:
        source = self._own(nack.stream)
        if source is None:
            return
        runs = source.answer(nack)
        if runs is None:
            self._open_nacks.append((node, broker, nack))
            return
        peer = self._peers.find(node, broker) or self._peers.towards(self._node, nack.leaf)
        if peer is not None:
            for run in runs:
                peer.send(run, run.vector, self._output)

    def _ack(self, output: list[Outgoing]) -> None:
        """Acknowledge what was committed, to all brokers of the neighbour node; each counts for itself."""
        for stream, sink in self._sinks.items():
            number = sink.ack()
            if number and (number > sink.acked or sink.tipped):
                sink.acked = number
                sink.tipped = False
                self._send_ack(stream, number, output)

    def _send_ack(self, stream: StreamName, number: int, output: list[Outgoing]) -> None:
        for peer in self._peers.live(self._node):
            serial = self._interest.announced(self._node, peer.broker)
            if serial:
                output.append((self._node, peer.broker, Ack(stream, number, serial)))
