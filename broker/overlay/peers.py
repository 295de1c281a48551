"""The brokers of the neighbour tree nodes with a current link, and the data sent to each in its session."""

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
from broker.overlay.progress import Behind

Outgoing = tuple[str, str, Packet]
"""A packet with the tree node and the name of the broker that it is for."""

NOBODY: Final = (frozenset[str](), 0)


@lru_cache(maxsize=65_536)
def weight(stream: StreamName, broker: str) -> int:
    """Return the weight of a broker for a stream: the same at every broker and after every restart.

    Source: Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998: the heaviest of the
    live brokers is chosen, so the loss of one moves only its own streams.
    """
    text = f"{stream.leaf}\0{stream.space.vhost}\0{stream.space.exchange}\0{broker}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def choose(
    stream: StreamName, reachable: Mapping[str, Collection[str]], wanted: Collection[str], avoided: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the brokers through which a stream reaches all wanted leaves that any of them can reach. `reachable` has
    the leaves that each live broker of the tree node can reach. One broker is enough unless none reaches all; then each
    further one adds the most leaves. Brokers in `avoided` come last, for leaves that no other broker reaches.

    Cost: the brokers times the wanted leaves.
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

    `vectors` has the number of the last vector that was sent, by stream; `skipped` the streams of which a full link
    has skipped runs, and `behind` those on which a leaf there is catching up. The other broker takes no message above
    `limit_bytes`; `refused` has the numbers of larger ones.
    """

    def __init__(self, node: str, broker: str, limit_bytes: int = NO_LIMIT) -> None:
        self.node = node
        self.broker = broker
        self.limit_bytes = limit_bytes
        self.refused: list[tuple[StreamName, int]] = []
        self.full = False
        self.vectors: dict[StreamName, int] = {}
        self.skipped: set[StreamName] = set()
        self.behind: dict[StreamName, Behind] = {}

    def send(self, run: StreamRun, vector: Vector | None, output: list[Outgoing]) -> bool:
        """Append a run to the output, with its vector if the peer may not have it; a full link skips it.

        A run that a leaf asked for is always sent, because a leaf asks only for what it has room for. While a leaf is
        catching up on a stream, nothing else of it is sent. `vector` is the one in force before the run, None if it is
        not known.
        """
        if self.behind and not self._passes(run):
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
        """Return the numbers that were too large since the last call."""
        refused, self.refused = self.refused, []
        return refused

    def set_full(self, is_full: bool) -> set[StreamName]:
        """Record whether the link is full; if it is not, return the streams of which it has skipped runs."""
        self.full = is_full
        if is_full:
            return set()
        skipped, self.skipped = self.skipped, set()
        return skipped

    def _passes(self, run: StreamRun) -> bool:
        """Return whether a run is sent, given that a leaf there may be catching up on its stream."""
        behind = self.behind.get(run.stream)
        if behind is None or run.last < run.first:
            return True
        if not run.target:
            behind.leave_out(run.last)
            return False
        if run.target == self.broker and run.last >= behind.reached:
            del self.behind[run.stream]
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
        """The neighbour tree nodes."""
        return self._nodes

    def connected(self, node: str, broker: str, limit_bytes: int = NO_LIMIT) -> OverlayPeer:
        """Begin a session with a broker that takes messages up to a limit."""
        peer = self._nodes[node][broker] = OverlayPeer(node, broker, limit_bytes)
        self._choices.clear()
        return peer

    def lost(self, node: str, broker: str) -> None:
        """End a session."""
        self._nodes[node].pop(broker, None)
        self._choices.clear()

    def take_refused(self) -> list[tuple[str, StreamName, int]]:
        """Return the messages that were too large since the last call: the neighbour, the stream and the number."""
        refused: list[tuple[str, StreamName, int]] = []
        for peers in self._nodes.values():
            for peer in peers.values():
                refused += [(peer.broker, stream, number) for stream, number in peer.take_refused()]
        return refused

    def forget(self, stream: StreamName) -> None:
        """Discard the record of the data sent of a stream."""
        for peers in self._nodes.values():
            for peer in peers.values():
                peer.vectors.pop(stream, None)
                peer.skipped.discard(stream)
                peer.behind.pop(stream, None)

    def find(self, node: str, broker: str) -> OverlayPeer | None:
        """Return a session, None if there is no link."""
        return self._nodes[node].get(broker)

    def live(self, node: str) -> Iterable[OverlayPeer]:
        """Return the sessions with the brokers of a node."""
        return self._nodes[node].values()

    def chosen(self, stream: StreamName, node: str) -> Iterable[OverlayPeer]:
        """Return the sessions of a node that a stream goes to. Cost: a look-up unless interest has changed."""
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
            avoided, _ = self._avoided.get((stream, node), NOBODY)
            chosen = tuple(peers[broker] for broker in choose(stream, reachable, wanted, avoided))
            self._choices[stream, node] = chosen
        return chosen

    def avoid(self, stream: StreamName, node: str, until_ms: int) -> None:
        """Choose other brokers for a stream that is stuck at the chosen ones, unless a leaf is away."""
        peers = self._nodes[node]
        reached = frozenset[str]().union(*(self._interest.reachable(node, broker) for broker in peers))
        if len(peers) < 2 or not self._wanted(node, stream.space) <= reached:
            return
        chosen = frozenset(peer.broker for peer in self.chosen(stream, node))
        before, _ = self._avoided.get((stream, node), NOBODY)
        avoided = before | chosen
        self._avoided[stream, node] = (chosen if avoided >= peers.keys() else avoided, until_ms)
        self._choices.pop((stream, node), None)

    def expire(self, now_ms: int) -> None:
        """Return to the brokers that were avoided until now."""
        for key in [key for key, (_, until_ms) in self._avoided.items() if until_ms <= now_ms]:
            del self._avoided[key]
            self._choices.pop(key, None)

    def towards(self, node: str, leaf: str, turn: int | None = None) -> OverlayPeer | None:
        """Return a session with a broker of a node that reaches a leaf, or with any, None if there is none.

        Each call returns the next one. A caller that repeats a request counts its own `turn`, to skip no session.
        """
        peers = self._nodes[node]
        able = [peer for broker, peer in peers.items() if leaf in self._interest.reachable(node, broker)]
        able = able or list(peers.values())
        self._turn += 1
        return able[(self._turn if turn is None else turn) % len(able)] if able else None

    def _wanted(self, node: str, space: Space) -> frozenset[str]:
        return frozenset(self._interest.vector(node, space))


def _last_vector(run: StreamRun, before: int) -> int:
    """Return the number of the last vector that a run carries, or the one before."""
    for element in reversed(run.elements):
        if isinstance(element, VectorChange):
            return element.number
    return before
