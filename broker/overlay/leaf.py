"""A leaf broker: it publishes its clients' messages as streams, and delivers the streams of others to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial

from broker.overlay.interest import Interest
from broker.overlay.logical_broker import LogicalBroker, Timing
from broker.overlay.packets import Ack, Conjunction, Nack, Packet, Space, StreamName, StreamRun, UpdateAck
from broker.overlay.peers import Outgoing, OverlayPeer
from broker.overlay.progress import LagWatch
from broker.overlay.sink import WHOLE_STREAM, ByteBudget, Delivery, Sink, StreamGap
from broker.overlay.source import LeafState, StreamLog, StreamSource

EVERYTHING = frozenset({"#"})
GIVEN_UP_ATTEMPTS = 4
RETIRED = 8
"""How many former incarnations of a stream a leaf remembers, because runs of them may still arrive."""

HAD = 8
"""How many former incarnations of a stream a leaf tells its publisher, so that a copy of its folder knows one."""

SKIP_PAUSE_MS, SKIP_PAUSE_MAX_MS = 100, 60_000


class Leaf(LogicalBroker):
    """One logical leaf broker with a single neighbour tree node.

    Persist `state` before packets are sent, if bindings changed. Take bindings, deliveries and gaps whenever packets
    have been received or time has passed.

    `logs` has the open streams; the caller changes it. The first call of `bindings_changed` brings all recovered
    bindings. No other process of the leaf has had the `incarnation`.
    """

    def __init__(
        self,
        name: str,
        neighbour: str,
        interest: Interest,
        logs: Mapping[Space, StreamLog],
        state: LeafState | None = None,
        timing: Timing | None = None,
        *,
        incarnation: int = 0,
    ) -> None:
        super().__init__(interest, (neighbour,), timing)
        state = state or LeafState()
        self._name = name
        self._node = neighbour
        self._logs = logs
        self._incarnation = incarnation
        budget = ByteBudget(self._timing.waiting_bytes)
        self._make_sink = partial(Sink, name, budget=budget, read_time=self._read_time)
        self._foreign = 0  # a virtual time of this leaf, known to others, that belongs to another run
        self._skip_ms, self._skip_pause_ms = 0, SKIP_PAUSE_MS
        self._skipped: list[int] = []
        self._retired: dict[tuple[str, Space], list[int]] = {}
        self._replaced: list[StreamName] = []
        self._rolled_back: set[tuple[StreamName, str]] = set()
        self.subscriptions = interest.subscriptions
        self.subscriptions.recover(state.start_points)
        self.sinks = {
            stream: self._make_sink(stream, position, doubtful_upto=WHOLE_STREAM if state.crashed else 0)
            for stream, position in state.positions.items()
        }
        self._incarnations: dict[tuple[str, Space], list[StreamName]] = {}  # the sinks of each stream
        for stream in self.sinks:
            self._incarnations.setdefault((stream.leaf, stream.space), []).append(stream)
        self.sources: dict[Space, StreamSource] = {}
        self._bound: dict[Space, frozenset[str]] = {}
        self._deliveries: list[Delivery] = []
        self._open_nacks: dict[tuple[StreamName, str], tuple[str, str, Nack, bool]] = {}
        self._seen: set[str] = set()
        self._waiting: set[Space] = set()
        self._reviewed = -1
        self._deferred: set[Space] = set()
        self._changed_ms: dict[Space, int] = {}
        self._stale_ms: dict[Space, int] = {}
        self._lags = LagWatch(self._timing.stall_ms, self._timing.tip_ms)
        self._now_ms = self._tip_ms = self._lags_ms = 0
        self._wanted_bindings: dict[Space, frozenset[str]] = {}
        self.gaps: list[StreamGap] = []
        self.has_more = False
        for space in logs:
            self.space_opened(space, 0)

    # ---- links -------------------------------------------------------------------------------------------------------

    def lost(self, node: str, broker: str, now_ms: int) -> None:
        """End a link session, and announce the positions of all streams, which now take other links."""
        super().lost(node, broker, now_ms)
        self._tip_all()

    def received(self, node: str, broker: str, packet: Packet, now_ms: int) -> None:
        """Process a packet; an acknowledged announcement shows which virtual times of this leaf others know."""
        super().received(node, broker, packet, now_ms)
        if isinstance(packet, UpdateAck) and packet.time:
            self._read_time(packet.time)
            self._skip_foreign(now_ms)

    def tick(self, now_ms: int) -> None:
        """Ask for missing numbers, send answers that waited for the log, and report the progress of lagging streams."""
        self._has_updates = True
        self._now_ms = now_ms
        self._skip_foreign(now_ms)
        asking = sum(sink.asks for sink in self.sinks.values())
        for stream, sink in list(self.sinks.items()):
            if sink.position is None and sink.had and sink.attempts >= GIVEN_UP_ATTEMPTS:
                self._drop_sink(stream)  # its packets were late, and its publisher no longer knows it
                continue
            floor = self.subscriptions.floor(sink.stream.space)
            nack = sink.nack(floor, now_ms, self._timing.window_bytes // max(1, asking))
            peer = None if nack is None else self.peers.towards(self._node, stream.leaf, sink.attempts)
            if nack is not None and peer is not None:
                self._output.append((peer.node, peer.broker, nack))
        deferred, self._deferred = self._deferred, set()
        for space in deferred:
            self._review_space(space, now_ms)
        nacks, self._open_nacks = self._open_nacks, {}
        for nack_from in nacks.values():
            self._answer(*nack_from)
        if now_ms >= self._lags_ms + self._timing.ack_ms:
            self._lags_ms = now_ms
            self._watch_lags()
        if now_ms >= self._tip_ms + self._timing.tip_ms:
            self._tip_ms = now_ms
            self._watch()

    def take_output(self, now_ms: int) -> list[Outgoing]:
        """Return the packets to send; with `has_more` call it again once they are written."""
        self._now_ms = now_ms
        had_updates = self._has_updates
        output = self._take_updates(now_ms)
        if had_updates:
            self._review(now_ms)
        self.has_more = False
        for source in self.sources.values():
            if source.sent < source.last:
                self._pump(source)
        output += self._output
        self._output = []
        if self._acks_are_due(now_ms):
            self._ack(output)
        return output

    # ---- the streams that clients here publish -----------------------------------------------------------------------

    def space_opened(self, space: Space, now_ms: int) -> None:
        """Handle a new exchange of a space here, which may already have a stream."""
        if space not in self.sources:
            stream = StreamName(self._name, space, self._incarnation)
            self.sources[space] = StreamSource(stream, self._logs[space])
            self._review_space(space, now_ms)
        else:
            self.sources[space].reopen(self._logs[space])

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
        """Give up a leaf that will not return, and discard the positions of its streams."""
        self.interest.forget(leaf)
        self._changed_ms.clear()
        for space in self.sources:
            self._review_space(space, now_ms, (leaf,))
        for stream in [stream for stream in self.sinks if stream.leaf == leaf]:
            self._drop_sink(stream)
        self._deliveries = [delivery for delivery in self._deliveries if delivery.stream.leaf != leaf]

    # ---- the bindings of clients here, and what they get -------------------------------------------------------------

    def bindings_changed(self, added: Iterable[tuple[str, Conjunction, bool]], removed: Iterable[str]) -> None:
        """Apply a batch: bindings with conjunction and durable flag, and bindings that are gone."""
        self.interest.change(added, removed)
        self._has_updates = True

    def take_deliveries(self) -> list[Delivery]:
        """Return the messages to publish here, in the order of each stream."""
        deliveries, self._deliveries = self._deliveries, []
        return deliveries

    def take_replaced(self) -> list[StreamName]:
        """Return the replaced incarnations since the last call; record the new ones before dropping their positions."""
        replaced, self._replaced = self._replaced, []
        return replaced

    def take_skipped_times(self) -> list[int]:
        """Return the virtual times of this leaf that others had and its data folder had not, since the last call."""
        skipped, self._skipped = self._skipped, []
        return skipped

    def take_rolled_back(self) -> list[tuple[StreamName, str, int]]:
        """Return which leaves had more of a stream than its data folder, and up to which number; each only once."""
        found: list[tuple[StreamName, str, int]] = []
        for source in self.sources.values():
            for leaf, number in source.rolled_back.items():
                if (source.stream, leaf) not in self._rolled_back:
                    self._rolled_back.add((source.stream, leaf))
                    found.append((source.stream, leaf, number))
            source.rolled_back.clear()
        return found

    def take_gaps(self) -> list[StreamGap]:
        """Return the gaps that were found since the last call, to log."""
        gaps, self.gaps = self.gaps, []
        return gaps

    def committed(self, stream: StreamName, number: int) -> None:
        """Record that all deliveries of a stream up to a number are durable here."""
        sink = self.sinks.get(stream)
        if sink is not None:
            sink.committed(number)

    def settle(self) -> None:
        """Append the vectors that wait for a message, before the process ends, so that the next start finds them."""
        for source in self.sources.values():
            if source.is_stale:
                self._change_vector(source)

    def state(self) -> LeafState:
        """Return the state that must survive a crash."""
        positions = {stream: sink.committed_upto for stream, sink in self.sinks.items() if sink.committed_upto}
        return LeafState(self.interest.own_time.bound, self.subscriptions.start_points(), positions)

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _announce_positions(self, peer: OverlayPeer) -> None:
        for sink in self.sinks.values():
            sink.ask_anew()
        self._tip_all()

    def _tip_all(self) -> None:
        for source in self.sources.values():
            self._tip(source)

    def _announce_position(self, stream: StreamName, peer: OverlayPeer) -> None:
        self._tip(self.sources[stream.space])

    def _receive_run(self, node: str, run: StreamRun, now_ms: int) -> None:
        stream = run.stream
        if stream.leaf == self._name:
            return
        if run.vector is not None and self._name in run.vector:
            self._read_time(run.vector[self._name])
            self._skip_foreign(now_ms)
        sink = self.sinks.get(stream)
        floor = self.subscriptions.floor(stream.space)
        if sink is None:
            sink = None if floor is None else self._find_sink(stream)
            if sink is None:
                return
        had_none = sink.position is None
        several = len(self._incarnations[stream.leaf, stream.space]) > 1
        if several and not had_none and self._is_replaced(stream):
            return
        self._deliveries += sink.received(run, floor)
        if several and had_none and sink.position is not None:
            self._retire_others(stream)
        self._skip_foreign(now_ms)
        self.gaps += sink.take_gaps()

    def _find_sink(self, stream: StreamName) -> Sink | None:
        """Create the sink of a new incarnation; return None while deliveries of another are not durable."""
        place = stream.leaf, stream.space
        if stream.incarnation in self._retired.get(place, ()):
            return None
        others = [self.sinks[other] for other in self._incarnations.get(place, ())]
        for other in others:
            other.close()
        if not all(other.is_settled for other in others):
            return None
        had: dict[int, int] = {}
        for other in others:
            had.update(other.had)
            if other.position is not None:
                had[other.stream.incarnation] = other.position
        doubtful_upto = max((other.doubtful_upto for other in others), default=0)
        sink = self.sinks[stream] = self._make_sink(
            stream, None, had=tuple(had.items())[-HAD:], doubtful_upto=doubtful_upto
        )
        self._incarnations.setdefault(place, []).append(stream)
        return sink

    def _is_replaced(self, stream: StreamName) -> bool:
        """Return whether another incarnation of a stream has asked where it continues."""
        return any(self.sinks[other].position is None for other in self._incarnations[stream.leaf, stream.space])

    def _retire_others(self, stream: StreamName) -> None:
        """Drop the other incarnations of a stream, which this one continues."""
        place = stream.leaf, stream.space
        for other in [other for other in self._incarnations[place] if other != stream]:
            self._drop_sink(other)
            self._replaced.append(other)
            self._retired[place] = [*self._retired.get(place, ()), other.incarnation][-RETIRED:]

    def _drop_sink(self, stream: StreamName) -> None:
        place = stream.leaf, stream.space
        self.sinks.pop(stream).close()
        self._incarnations[place].remove(stream)
        if not self._incarnations[place]:
            del self._incarnations[place]

    def _read_time(self, time: int) -> int:
        """Return this leaf's entry in a vector as a time of its own clock, and record a time of another run from a copy
        of the data folder. The promises of that run apply only to recovered bindings, so its times count as the last
        recovered one.
        """
        own = self.interest.own_time.recognize(time)
        if own is not None:
            return own
        self._foreign = max(self._foreign, time)
        return self.interest.own_time.recovered

    def _skip_foreign(self, now_ms: int) -> None:
        """Continue above the times of another run of this leaf, so that the promises of this one are the latest.
        If two leaves share a name, they overtake each other in turn, with growing pauses.
        """
        if not self._foreign or now_ms < self._skip_ms:
            return
        foreign, self._foreign = self._foreign, 0
        if self.interest.own_time.recognize(foreign) is None and foreign > self.interest.time(self._name):
            self._skipped.append(foreign)
            self.interest.skip_above(foreign)
            self._has_updates = True
            self._skip_ms = now_ms + self._skip_pause_ms
            self._skip_pause_ms = min(2 * self._skip_pause_ms, SKIP_PAUSE_MAX_MS)

    def _receive_ack(self, ack: Ack, leaves: Collection[str]) -> None:
        source = self._own(ack.stream)
        if source is not None:
            source.acked(ack.stream.incarnation, leaves, ack.number)

    def _receive_nack(self, node: str, broker: str, nack: Nack) -> None:
        self._answer(node, broker, nack)

    def _answer(self, node: str, broker: str, nack: Nack, again: bool = False) -> None:
        """Answer a request within the limits of the log, the link and the window, and the rest in later ticks."""
        source = self._own(nack.stream)
        peer = self.peers.find(node, broker) or self.peers.towards(self._node, nack.leaf)
        if source is None or peer is None:
            return
        if peer.full:
            self._open_nacks[nack.stream, nack.leaf] = (node, broker, nack, again)
            return
        runs = source.answer(nack, again=again)
        for run in runs or ():
            peer.send(run, run.vector, self._output)
        if runs is None or source.has_more_for(nack):
            self._open_nacks[nack.stream, nack.leaf] = (node, broker, nack, True)

    def _own(self, stream: StreamName) -> StreamSource | None:
        return self.sources.get(stream.space) if stream.leaf == self._name else None

    def _review(self, now_ms: int) -> None:
        """Review the streams whose interest has changed, and those that wait for news of a leaf."""
        touched = self.interest.take_touched()
        if self._waiting and self._reviewed != self.interest.version:
            touched |= self._waiting
        self._reviewed = self.interest.version
        for space in touched:
            self._review_space(space, now_ms)

    def _review_space(self, space: Space, now_ms: int, given_up: tuple[str, ...] = ()) -> None:
        """Update the vector and the bindings of a stream by the known interest of others. A change of the vector is
        appended right before the next message, so that many changes without a message cost nothing. The bindings may be
        ahead of the vector, so a vector that has just changed is kept for some time.
        """
        source = self.sources.get(space)
        if source is None:
            return
        interest, node = self.interest, self._node
        known = interest.vector(node, space)
        self._seen.update(known)
        withdrawn = [leaf for leaf in source.vector if leaf in self._seen and interest.direction(leaf) is None]
        if now_ms < self._changed_ms.get(space, -self._timing.vector_ms) + self._timing.vector_ms:
            self._deferred.add(space)
        else:
            source.review(known, self._is_left, {*withdrawn, *given_up})
            source.before_next(partial(self._change_vector, source) if source.begins else None)
            source.trim()
        enough = interest.sufficient(node, space, source.vector)
        (self._waiting.discard if source.vector == known else self._waiting.add)(space)
        self._wanted_bindings[space] = frozenset(interest.roots(node, space)) if enough else EVERYTHING

    def _change_vector(self, source: StreamSource) -> None:
        """Append the vector that the next message has."""
        source.change_vector()
        space = source.stream.space
        self._changed_ms[space] = self._now_ms
        self._stale_ms.pop(space, None)

    def _is_left(self, leaf: str, virtual_time: int) -> bool:
        """Return whether a leaf is known well enough to conclude that it has no interest."""
        return self.interest.direction(leaf) is not None and self.interest.time(leaf) >= virtual_time

    def _pump(self, source: StreamSource) -> None:
        """Send runs of a stream, unless a link that they go over is full."""
        for _ in range(self._timing.burst_runs):
            peers = list(self.peers.chosen(source.stream, self._node))
            if not peers or any(peer.full for peer in peers):
                return
            run = source.run(self._timing.run_bytes)
            if run is None:
                return
            for peer in peers:
                peer.send(run, run.vector, self._output)
        self.has_more |= source.sent < source.last

    def _tip(self, source: StreamSource) -> None:
        """Announce the position of a stream, unless all leaves have it and know of the interest in its vector.

        A leaf that reads a virtual time of its own there that it never had continues above it.
        """
        if source.needed_from() <= source.sent or source.stream.space in self._waiting:
            tip = source.tip()
            for peer in self.peers.live(self._node):
                peer.send(tip, tip.vector, self._output)

    def _watch_lags(self) -> None:
        """Send streams with stalled acks over other brokers of the node, and tips to all of them."""
        self.peers.expire(self._now_ms)
        for space, source in self.sources.items():
            if self._lags.is_stuck(space, source.needed_from(), source.sent, self._now_ms):
                self.peers.avoid(source.stream, self._node, self._now_ms + self._timing.avoid_ms)
                self._tip(source)

    def _watch(self) -> None:
        """Drop unneeded state, and update vectors. A vector with a new leaf no longer waits for a message, so that the
        leaf learns where it starts. Other vectors are appended after a longer time, so that a restart finds a recent
        one.
        """
        for space, source in self.sources.items():
            source.trim()
            if space in self._waiting:
                self._tip(source)
            if source.is_stale:
                since_ms = self._stale_ms.setdefault(space, self._now_ms)
                if source.has_newcomers or self._now_ms >= since_ms + self._timing.vector_idle_ms:
                    self._change_vector(source)
        self._forget_unneeded()

    def _forget_unneeded(self) -> None:
        """Drop received streams without bindings here, own streams that have ended, and unneeded leaves.

        A binding that asks for such a stream again begins at its own start point.
        """
        for stream, sink in list(self.sinks.items()):
            if sink.is_settled and self.subscriptions.floor(stream.space) is None:
                self._drop_sink(stream)
        for space in self.sources.keys() - self._logs.keys():
            if self.sources[space].needed_from() > self.sources[space].last:
                for known in (self.sources, self._bound, self._changed_ms, self._stale_ms):
                    known.pop(space, None)
                self._lags.forget(space)
                self._waiting.discard(space)
                self._deferred.discard(space)
        promised = {leaf for source in self.sources.values() for leaf in source.vector}
        self._seen = {leaf for leaf in self._seen if leaf in promised or self.interest.direction(leaf) is not None}

    def _ack(self, output: list[Outgoing]) -> None:
        """Acknowledge committed numbers to all brokers of the neighbour node, each of which counts separately."""
        for stream, sink in self.sinks.items():
            number = sink.take_ack()
            if number:
                self._send_ack(stream, number, self._node, output)
