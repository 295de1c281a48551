"""The link sessions of one logical broker, the data sent in each, and the brokers to which a stream is sent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from broker.overlay.interest import Interest
from broker.overlay.packets import (
    NO_LIMIT,
    Packet,
    Space,
    StreamName,
    StreamRun,
    Vector,
    VectorChange,
    exceeds,
    within_limit,
)
from broker.overlay.progress import LaggingStream

Outgoing = tuple[str, str, Packet]
"""A packet with the tree node and the name of its receiver."""

NOT_AVOIDED: Final = (frozenset[str](), 0)


@lru_cache(maxsize=65_536)
def weight(stream: StreamName, broker: str) -> int:
    """Return the weight of a broker for a stream: the same at every broker and after every restart.

    Source: Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998: the heaviest live broker
        is chosen, so the loss of a broker moves only its own streams.
    """
    text = f"{stream.leaf}\0{stream.space.vhost}\0{stream.space.exchange}\0{broker}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def choose(
    stream: StreamName, reachable: Mapping[str, Collection[str]], wanted: Collection[str], avoided: Collection[str] = ()
) -> tuple[str, ...]:
    """Return brokers through which a stream reaches all wanted leaves that any broker of the tree node can reach.

    `reachable` maps each live broker to the leaves that it can reach. One broker is chosen if it reaches all leaves;
    otherwise each further broker adds the most leaves. Brokers in `avoided` are chosen only for leaves that no other
    broker reaches. Cost: O(brokers * wanted leaves) for each chosen broker.
    """
    ranked = sorted(reachable, key=lambda broker: (broker in avoided, -weight(stream, broker)))
    if len(ranked) < 2:
        return tuple(ranked)
    preferred = [broker for broker in ranked if broker not in avoided]
    chosen: list[str] = []
    missing = set(wanted)
    for brokers in (preferred, ranked):
        left = {leaf for leaf in missing if any(leaf in reachable[broker] for broker in brokers)}
        missing -= left
        while left:
            best = max(brokers, key=lambda broker: sum(leaf in reachable[broker] for leaf in left))
            chosen.append(best)
            left.difference_update(reachable[best])
    return tuple(chosen) or (ranked[0],)


class OverlayPeer:
    """One link session with one broker.

    `vectors` maps each stream to the number of the last vector change that was sent. `skipped` are the streams of which
    runs were skipped because the link was full, `lagging` those on which the leaf at the other end is catching up. The
    other broker accepts messages of at most `limit_bytes`; `refused` lists larger messages by stream and number.
    """

    def __init__(self, node: str, broker: str, limit_bytes: int = NO_LIMIT) -> None:
        self.node = node
        self.broker = broker
        self.limit_bytes = limit_bytes
        self.refused: list[tuple[StreamName, int]] = []
        self.full = False
        self.vectors: dict[StreamName, int] = {}
        self.skipped: set[StreamName] = set()
        self.lagging: dict[StreamName, LaggingStream] = {}

    def send(self, run: StreamRun, vector: Vector | None, output: list[Outgoing]) -> bool:
        """Append a run to the output, with its vector if the peer may not have it; a full link skips it. Return whether
        it was appended. Runs that a leaf requested are sent even if the link is full: the leaf has room for them.

        While a leaf is catching up on a stream, other runs of the stream are skipped, except tips. `vector` is the
        vector in force before the run, or None if unknown.
        """
        if self.lagging and not self._passes(run):
            return False
        if self.full and not run.target:
            self.skipped.add(run.stream)
            return False
        always = bool(run.target) or run.last < run.first
        wanted = vector if always or self.vectors.get(run.stream, 0) != run.vector_at else None
        sent = run if run.vector is wanted else replace(run, vector=wanted)
        if exceeds(run, self.limit_bytes):
            for part in within_limit(sent, self.limit_bytes):
                output.append((self.node, self.broker, part))
                if part.lost:
                    self.refused.append((part.stream, part.first))
        else:
            output.append((self.node, self.broker, sent))
        if not run.target:
            number = _last_vector(run, run.vector_at if wanted is not None else 0)
            if number:
                self.vectors[run.stream] = number
        return True

    def take_refused(self) -> list[tuple[StreamName, int]]:
        """Return the messages since the last call that were too large: the stream and the number."""
        refused, self.refused = self.refused, []
        return refused

    def set_full(self, is_full: bool) -> set[StreamName]:
        """Record whether the link is full. Once it is not, return the streams of which runs were skipped."""
        self.full = is_full
        if is_full:
            return set()
        skipped, self.skipped = self.skipped, set()
        return skipped

    def _passes(self, run: StreamRun) -> bool:
        """Return whether to send a run, and update the record of a stream on which the other end is lagging."""
        lagging = self.lagging.get(run.stream)
        if lagging is None or run.last < run.first:
            return True
        if not run.target:
            lagging.skip(run.last)
            return False
        if run.target == self.broker and run.last >= lagging.reached:
            del self.lagging[run.stream]
        return True


class Peers:
    """All link sessions of one logical broker."""

    def __init__(self, nodes: Sequence[str], interest: Interest) -> None:
        self._interest = interest
        self._nodes: dict[str, dict[str, OverlayPeer]] = {node: {} for node in nodes}
        self._choices: dict[tuple[StreamName, str], tuple[OverlayPeer, ...]] = {}
        self._avoided: dict[tuple[StreamName, str], tuple[frozenset[str], int]] = {}  # brokers, and until when
        self._version = -1
        self._turn = 0

    @property
    def nodes(self) -> Iterable[str]:
        return self._nodes

    def connected(self, node: str, broker: str, limit_bytes: int = NO_LIMIT) -> OverlayPeer:
        """Begin a session with a broker that accepts messages up to a limit."""
        peer = self._nodes[node][broker] = OverlayPeer(node, broker, limit_bytes)
        self._choices.clear()
        return peer

    def lost(self, node: str, broker: str) -> None:
        self._nodes[node].pop(broker, None)
        self._choices.clear()

    def take_refused(self) -> list[tuple[str, StreamName, int]]:
        """Return the messages since the last call that were too large: the neighbour, the stream and the number."""
        refused: list[tuple[str, StreamName, int]] = []
        for peers in self._nodes.values():
            for peer in peers.values():
                refused += [(peer.broker, stream, number) for stream, number in peer.take_refused()]
        return refused

    def forget(self, stream: StreamName) -> None:
        """Discard the state of a stream in all sessions."""
        for peers in self._nodes.values():
            for peer in peers.values():
                peer.vectors.pop(stream, None)
                peer.skipped.discard(stream)
                peer.lagging.pop(stream, None)

    def find(self, node: str, broker: str) -> OverlayPeer | None:
        """Return a session, or None if there is no link."""
        return self._nodes[node].get(broker)

    def live(self, node: str) -> Iterable[OverlayPeer]:
        """Return the sessions with the brokers of a node."""
        return self._nodes[node].values()

    def chosen(self, stream: StreamName, node: str) -> Iterable[OverlayPeer]:
        """Return the sessions of a node that carry a stream. Cost: a look-up until interest or links change."""
        peers = self._nodes[node]
        if len(peers) < 2:
            return peers.values()
        if self._version != self._interest.version:
            self._choices.clear()
            self._version = self._interest.version
        chosen = self._choices.get((stream, node))
        if chosen is None:
            reachable = {broker: self._interest.reachable(node, broker) for broker in peers}
            wanted = self._wanted(node, stream.space)
            avoided, _ = self._avoided.get((stream, node), NOT_AVOIDED)
            chosen = tuple(peers[broker] for broker in choose(stream, reachable, wanted, avoided))
            self._choices[stream, node] = chosen
        return chosen

    def avoid(self, stream: StreamName, node: str, until_ms: int) -> None:
        """Choose other brokers for a stream without progress, if there are any and all wanted leaves are reachable."""
        peers = self._nodes[node]
        reached = frozenset[str]().union(*(self._interest.reachable(node, broker) for broker in peers))
        if len(peers) < 2 or not self._wanted(node, stream.space) <= reached:
            return
        chosen = frozenset(peer.broker for peer in self.chosen(stream, node))
        before, _ = self._avoided.get((stream, node), NOT_AVOIDED)
        avoided = before | chosen
        self._avoided[stream, node] = (chosen if avoided >= peers.keys() else avoided, until_ms)
        self._choices.pop((stream, node), None)

    def expire(self, now_ms: int) -> None:
        """Stop avoiding the brokers that were to be avoided until now."""
        for key in [key for key, (_, until_ms) in self._avoided.items() if until_ms <= now_ms]:
            del self._avoided[key]
            self._choices.pop(key, None)

    def towards(self, node: str, leaf: str, turn: int | None = None) -> OverlayPeer | None:
        """Return a session with a broker of a node that reaches a leaf, else with any, or None if there is no link.

        The sessions are used in turn. A caller that repeats a request passes the number of the attempt as `turn`.
        """
        peers = self._nodes[node]
        candidates = [peer for broker, peer in peers.items() if leaf in self._interest.reachable(node, broker)]
        candidates = candidates or list(peers.values())
        self._turn += 1
        return candidates[(self._turn if turn is None else turn) % len(candidates)] if candidates else None

    def _wanted(self, node: str, space: Space) -> frozenset[str]:
        return frozenset(self._interest.vector(node, space))


def _last_vector(run: StreamRun, before: int) -> int:
    """Return the number of the last vector change in a run, or `before` if there is none."""
    for element in reversed(run.elements):
        if isinstance(element, VectorChange):
            return element.number
    return before
