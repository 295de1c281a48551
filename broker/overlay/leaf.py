"""A leaf broker: it publishes the messages of its clients as streams, and delivers other leaves' streams to them."""

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
ATTEMPTS_MAX = 4  # unanswered requests for the base of an incarnation that continues former ones
RETIRED_MAX = 8
"""How many replaced incarnations of a stream a leaf remembers, because runs of them may still arrive."""

FORMER_SENT_MAX = 8
"""How many former incarnations a leaf names in a request, so that a publisher with an older folder knows one."""

SKIP_PAUSE_MS, SKIP_PAUSE_MAX_MS = 100, 60_000


class Leaf(LogicalBroker):
    """One logical leaf broker with a single neighbour tree node.

    If bindings have changed, persist `state` before sending packets. Take bindings, deliveries and gaps after each
    event and each tick.

    The caller adds open streams to `logs` and removes ended ones. The first call of `bindings_changed` passes all
    recovered bindings. No earlier process of the leaf had the same `incarnation`.
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
        self._foreign = 0  # the latest virtual time that other brokers know from another run of this leaf
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
        self._bound: dict[Space, frozenset[str]] = {}  # the bindings of the own streams
        self._deliveries: list[Delivery] = []
        self._open_nacks: dict[tuple[StreamName, str], tuple[str, str, Nack, bool]] = {}
        self._seen: set[str] = set()  # interested leaves that were reached since the start
        self._waiting: set[Space] = set()  # spaces whose vector differs from the known interest
        self._reviewed = -1  # the version of the interest
        self._deferred: set[Space] = set()  # spaces whose vector has just changed
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
        """End a link session, and announce the positions of unacknowledged streams over the other links."""
        super().lost(node, broker, now_ms)
        self._announce_all()

    def received(self, node: str, broker: str, packet: Packet, now_ms: int) -> None:
        """Process a packet. The ack of an update says which virtual time of this leaf the neighbour knows."""
        super().received(node, broker, packet, now_ms)
        if isinstance(packet, UpdateAck) and packet.time:
            self._read_time(packet.time)
            self._skip_foreign(now_ms)

    def tick(self, now_ms: int) -> None:
        """Request missing numbers, continue incomplete answers, announce lagging streams, and append due vectors."""
        self._has_updates = True
        self._now_ms = now_ms
        self._skip_foreign(now_ms)
        asking = sum(sink.awaits_answers for sink in self.sinks.values())
        for stream, sink in list(self.sinks.items()):
            if sink.position is None and sink.former and sink.attempts >= ATTEMPTS_MAX:
                self._drop_sink(stream)  # its publisher no longer knows this incarnation
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
            self._receive_nack(*nack_from)
        if now_ms >= self._lags_ms + self._timing.ack_ms:
            self._lags_ms = now_ms
            self._watch_lags()
        if now_ms >= self._tip_ms + self._timing.tip_ms:
            self._tip_ms = now_ms
            self._maintain()

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
                self._send_runs(source)
        output += self._output
        self._output = []
        if self._acks_are_due(now_ms):
            self._ack(output)
        return output

    # ---- the streams that this leaf publishes ------------------------------------------------------------------------

    def space_opened(self, space: Space, now_ms: int) -> None:
        """Handle the declaration of an exchange at this leaf; its space may already have a stream."""
        if space not in self.sources:
            stream = StreamName(self._name, space, self._incarnation)
            self.sources[space] = StreamSource(stream, self._logs[space])
            self._review_space(space, now_ms)
        else:
            self.sources[space].reopen(self._logs[space])

    def take_bindings(self) -> list[tuple[Space, frozenset[str], frozenset[str]]]:
        """Return the changed bindings of the own streams: for each space the patterns to add, then those to remove.

        Apply them before the next message is published.
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
        """Retain no more messages for a leaf that will not return, and discard the positions of its streams."""
        self.interest.forget(leaf)
        self._changed_ms.clear()
        for space in self.sources:
            self._review_space(space, now_ms, (leaf,))
        for stream in [stream for stream in self.sinks if stream.leaf == leaf]:
            self._drop_sink(stream)
        self._deliveries = [delivery for delivery in self._deliveries if delivery.stream.leaf != leaf]

    # ---- the bindings of this leaf, and the deliveries to them -------------------------------------------------------

    def bindings_changed(self, added: Iterable[tuple[str, Conjunction, bool]], removed: Iterable[str]) -> None:
        """Apply a batch of added and removed bindings. Shapes: as in `Subscriptions.change`."""
        self.interest.change(added, removed)
        self._has_updates = True

    def take_deliveries(self) -> list[Delivery]:
        """Return the messages to publish at this leaf, in the order of each stream."""
        deliveries, self._deliveries = self._deliveries, []
        return deliveries

    def take_replaced(self) -> list[StreamName]:
        """Return the incarnations replaced since the last call; record the new positions before dropping theirs."""
        replaced, self._replaced = self._replaced, []
        return replaced

    def take_skipped_times(self) -> list[int]:
        """Return the virtual times of this leaf, found since the last call, that its data folder does not contain."""
        skipped, self._skipped = self._skipped, []
        return skipped

    def take_rolled_back(self) -> list[tuple[StreamName, str, int]]:
        """Return stream, leaf and last number, once for each leaf that received more than the data folder contains."""
        found: list[tuple[StreamName, str, int]] = []
        for source in self.sources.values():
            for leaf, number in source.rolled_back.items():
                if (source.stream, leaf) not in self._rolled_back:
                    self._rolled_back.add((source.stream, leaf))
                    found.append((source.stream, leaf, number))
            source.rolled_back.clear()
        return found

    def take_gaps(self) -> list[StreamGap]:
        """Return the gaps found since the last call."""
        gaps, self.gaps = self.gaps, []
        return gaps

    def committed(self, stream: StreamName, number: int) -> None:
        """Record that all deliveries of a stream up to a number are durable at this leaf."""
        sink = self.sinks.get(stream)
        if sink is not None:
            sink.committed(number)

    def settle(self) -> None:
        """Append the vectors that wait for a message, so that the next start finds them."""
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
            sink.reset_request()
        self._announce_all()

    def _announce_all(self) -> None:
        for source in self.sources.values():
            self._announce_tip(source)

    def _announce_position(self, stream: StreamName, peer: OverlayPeer) -> None:
        self._announce_tip(self.sources[stream.space])

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
        """Create the sink of an incarnation; return None if it was replaced or must wait for others' commits."""
        key = stream.leaf, stream.space
        if stream.incarnation in self._retired.get(key, ()):
            return None
        others = [self.sinks[other] for other in self._incarnations.get(key, ())]
        for other in others:
            other.close()
        if not all(other.is_settled for other in others):
            return None
        former: dict[int, int] = {}
        for other in others:
            former.update(other.former)
            if other.position is not None:
                former[other.stream.incarnation] = other.position
        doubtful_upto = max((other.doubtful_upto for other in others), default=0)
        sink = self.sinks[stream] = self._make_sink(
            stream, None, former=tuple(former.items())[-FORMER_SENT_MAX:], doubtful_upto=doubtful_upto
        )
        self._incarnations.setdefault(key, []).append(stream)
        return sink

    def _is_replaced(self, stream: StreamName) -> bool:
        """Return whether a newer incarnation of a stream is waiting for its base."""
        return any(self.sinks[other].position is None for other in self._incarnations[stream.leaf, stream.space])

    def _retire_others(self, stream: StreamName) -> None:
        """Drop the other incarnations of a stream, which this one continues."""
        key = stream.leaf, stream.space
        for other in [other for other in self._incarnations[key] if other != stream]:
            self._drop_sink(other)
            self._replaced.append(other)
            self._retired[key] = [*self._retired.get(key, ()), other.incarnation][-RETIRED_MAX:]

    def _drop_sink(self, stream: StreamName) -> None:
        key = stream.leaf, stream.space
        self.sinks.pop(stream).close()
        self._incarnations[key].remove(stream)
        if not self._incarnations[key]:
            del self._incarnations[key]

    def _read_time(self, time: int) -> int:
        """Return this leaf's entry in a vector as a time of its own clock.

        A time of another run, which had a copy of the data folder, is recorded. It concerns only recovered bindings, so
        the last recovered time is returned for it.
        """
        own = self.interest.own_time.recognize(time)
        if own is not None:
            return own
        self._foreign = max(self._foreign, time)
        return self.interest.own_time.recovered

    def _skip_foreign(self, now_ms: int) -> None:
        """Continue above the times of another run of this leaf, so that this run's announcements are the latest.

        If two leaves have the same name, they overtake each other in turn, at growing intervals.
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
        source = self._own_source(ack.stream)
        if source is not None:
            source.acked(ack.stream.incarnation, leaves, ack.number)

    def _receive_nack(self, node: str, broker: str, nack: Nack, again: bool = False) -> None:
        """Answer a request as far as the log, the link and the window allow; the next ticks send the rest."""
        source = self._own_source(nack.stream)
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

    def _own_source(self, stream: StreamName) -> StreamSource | None:
        return self.sources.get(stream.space) if stream.leaf == self._name else None

    def _review(self, now_ms: int) -> None:
        """Update the vectors of streams whose interest has changed, and of those that wait for an announcement."""
        touched = self.interest.take_touched()
        if self._waiting and self._reviewed != self.interest.version:
            touched |= self._waiting
        self._reviewed = self.interest.version
        for space in touched:
            self._review_space(space, now_ms)

    def _review_space(self, space: Space, now_ms: int, given_up: tuple[str, ...] = ()) -> None:
        """Update the vector and the bindings of a stream according to the known interest.

        A changed vector is appended right before the next message, or by `_maintain`: until then, changes are merged.
        The bindings may be ahead of the vector, so a vector that has just changed stays unchanged for `vector_ms`.
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
            source.review(known, self._has_no_interest, {*withdrawn, *given_up})
            source.before_next(partial(self._change_vector, source) if source.needs_change else None)
            source.trim()
        is_complete = interest.sufficient(node, space, source.vector)
        (self._waiting.discard if source.vector == known else self._waiting.add)(space)
        self._wanted_bindings[space] = frozenset(interest.roots(node, space)) if is_complete else EVERYTHING

    def _change_vector(self, source: StreamSource) -> None:
        """Append the vector of the next message."""
        source.change_vector()
        space = source.stream.space
        self._changed_ms[space] = self._now_ms
        self._stale_ms.pop(space, None)

    def _has_no_interest(self, leaf: str, virtual_time: int) -> bool:
        """Return whether a leaf without announced interest is known at a virtual time, or a later one."""
        return self.interest.direction(leaf) is not None and self.interest.time(leaf) >= virtual_time

    def _send_runs(self, source: StreamSource) -> None:
        """Send runs of a stream, at most `burst_runs`, while none of its links is full."""
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

    def _announce_tip(self, source: StreamSource) -> None:
        """Announce the position and the vector of a stream, unless all leaves have acknowledged what was sent of it and
        the vector equals the known interest.

        A leaf that finds a virtual time of another of its runs in the vector continues above it.
        """
        if source.needed_from() <= source.sent or source.stream.space in self._waiting:
            tip = source.tip()
            for peer in self.peers.live(self._node):
                peer.send(tip, tip.vector, self._output)

    def _watch_lags(self) -> None:
        """If the acks of a stream make no progress, choose other brokers of the node, and send its position to all."""
        self.peers.expire(self._now_ms)
        for space, source in self.sources.items():
            if self._lags.is_stuck(space, source.needed_from(), source.sent, self._now_ms):
                self.peers.avoid(source.stream, self._node, self._now_ms + self._timing.avoid_ms)
                self._announce_tip(source)

    def _maintain(self) -> None:
        """Append vectors that have waited too long for a message, announce waiting streams, and drop unneeded state.

        A vector with a new leaf is appended now, so that the leaf learns where its stream starts; other vectors are
        appended after `vector_idle_ms`, so that a restart finds a recent one.
        """
        for space, source in self.sources.items():
            source.trim()
            if space in self._waiting:
                self._announce_tip(source)
            if source.is_stale:
                since_ms = self._stale_ms.setdefault(space, self._now_ms)
                if source.has_newcomers or self._now_ms >= since_ms + self._timing.vector_idle_ms:
                    self._change_vector(source)
        self._forget_unneeded()

    def _forget_unneeded(self) -> None:
        """Drop received streams without bindings, ended own streams that are acknowledged, and unneeded leaves.

        If a binding wants a dropped received stream again, the stream starts at the start point of that binding.
        """
        for stream, sink in list(self.sinks.items()):
            if sink.is_settled and self.subscriptions.floor(stream.space) is None:
                self._drop_sink(stream)
        for space in self.sources.keys() - self._logs.keys():
            if self.sources[space].needed_from() > self.sources[space].last:
                for by_space in (self.sources, self._bound, self._changed_ms, self._stale_ms):
                    by_space.pop(space, None)
                self._lags.forget(space)
                self._waiting.discard(space)
                self._deferred.discard(space)
        in_vectors = {leaf for source in self.sources.values() for leaf in source.vector}
        self._seen = {leaf for leaf in self._seen if leaf in in_vectors or self.interest.direction(leaf) is not None}

    def _ack(self, output: list[Outgoing]) -> None:
        """Acknowledge committed numbers to all brokers of the neighbour node; each tracks acks by itself."""
        for stream, sink in self.sinks.items():
            number = sink.take_ack()
            if number:
                self._send_ack(stream, number, self._node, output)
