"""Simulate how the brokers of an overlay tree announce their interest, with the production class `Interest`."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from broker.overlay.aggregation import Aggregation
from broker.overlay.interest import Interest
from broker.overlay.packets import Conjunction, Packet, Resync, Space, Update, UpdateAck
from broker.overlay.simulation.member import Scheduler
from broker.overlay.simulation.network import SimulatedTree
from broker.overlay.wire import encode
from broker.routing.index import TopicIndex

LEAF_PATTERNS: Final = 20  # the most patterns in which the clients of one leaf are interested
_KINDS: Final = ("{0}.{1}.{2}", "{0}.{1}.*", "*.{1}.{2}", "{0}.#")
_SHARES: Final = (0.7, 0.2, 0.09, 0.01)


def sized_tree(brokers: int, fan_out: int, redundancy: int) -> SimulatedTree:
    """Return a balanced tree with exactly this many brokers.

    Inner tree nodes have `redundancy` brokers each and about `fan_out` children. The node `inner0` is the root.
    """
    inner = max(1, (brokers - 1) // (fan_out - 1 + redundancy))
    leaves = brokers - inner * redundancy
    assert leaves > 1, "a tree has two leaves or more"
    nodes = [f"inner{place}" for place in range(inner)]
    members = {node: tuple(f"{node}.{number}" for number in range(redundancy)) for node in nodes}
    neighbours: dict[str, list[str]] = {node: [] for node in nodes}
    for place in range(1, inner + leaves):
        parent = (place - 1) // fan_out
        if parent >= inner:
            parent = inner - 1 - place % inner
        node = nodes[place] if place < inner else f"leaf{place - inner}"
        if place >= inner:
            members[node] = (node,)
            neighbours[node] = []
        neighbours[nodes[parent]].append(node)
        neighbours[node].append(nodes[parent])
    return SimulatedTree(members, {node: tuple(names) for node, names in neighbours.items()})


def parents_of(tree: SimulatedTree, root: str = "inner0") -> dict[str, str]:
    """Return the parent of each tree node except the root, in breadth-first order."""
    parents: dict[str, str] = {}
    waiting = [root]
    for node in waiting:
        for other in tree.neighbours[node]:
            if parents.get(node) != other:
                parents[other] = node
                waiting.append(other)
    return parents


def sites_of(tree: SimulatedTree, parents: dict[str, str]) -> list[str]:
    """Return the sites: the inner tree nodes that have only leaves as children."""
    return [
        node
        for node in tree.brokers
        if not tree.is_leaf(node)
        and all(tree.is_leaf(other) for other in tree.neighbours[node] if other != parents.get(node))
    ]


def least_crossings(parents: Mapping[str, str], leaf: str, wanting: Iterable[str]) -> int:
    """Return the number of edges in the smallest subtree that joins a leaf and all leaves that want its message."""
    below: dict[str, int] = {}  # the number of joined leaves in the subtree of each node
    joined = {leaf, *wanting}
    for end in joined:
        node: str | None = end
        while node is not None:
            below[node] = below.get(node, 0) + 1
            node = parents.get(node)
    return sum(1 for node, count in below.items() if node in parents and count < len(joined))


class Workload:
    """The subscriptions of the clients of each leaf, and the routing keys of messages.

    There are `patterns` distinct patterns for keys of three words. The clients of a leaf choose among up to
    LEAF_PATTERNS of them, the n-th with a probability proportional to 1/n. All routing keys are equally likely.

    Shapes: `counts` maps each leaf to its number of subscriptions by pattern.
    Cost: independent of the number of subscriptions, because equal subscriptions of a leaf are only counted.
    """

    def __init__(self, patterns: int, subscriptions: int, leaves: Sequence[str], seed: int) -> None:
        self._random: Any = np.random.default_rng(seed)
        self._words = max(3, 1 + round(patterns ** (1 / 3)))
        self.universe = self._draw_universe(patterns)
        self._weights = 1 / np.arange(1, 1 + min(LEAF_PATTERNS, len(self.universe)))
        self._weights /= self._weights.sum()
        self._profiles: dict[str, tuple[str, ...]] = {}
        self.counts: dict[str, dict[str, int]] = {}
        each, more = divmod(subscriptions, len(leaves))
        for place, leaf in enumerate(leaves):
            chosen = self._random.choice(len(self.universe), len(self._weights), replace=False)
            profile = self._profiles[leaf] = tuple(self.universe[number] for number in chosen)
            drawn = self._random.multinomial(each + (place < more), self._weights).tolist()
            self.counts[leaf] = {pattern: count for pattern, count in zip(profile, drawn, strict=True) if count}

    def key(self) -> str:
        return ".".join(self._key_words())

    def index(self) -> TopicIndex:
        """Return an index that maps a key to the leaves that want it."""
        index = TopicIndex()
        for leaf, counts in self.counts.items():
            for pattern in counts:
                index.add(index.parse(pattern), leaf)
        return index

    def change(self, leaf: str) -> tuple[str, int, int]:
        """Let one client of a leaf subscribe or unsubscribe; return the pattern, its old count and its new count.

        Every existing subscription is equally likely to end.
        """
        counts = self.counts[leaf]
        total = sum(counts.values())
        if total and self._random.random() < 0.5:
            shares = np.array(list(counts.values())) / total
            pattern, change = list(counts)[int(self._random.choice(len(counts), p=shares))], -1
        else:
            pattern, change = self._profiles[leaf][int(self._random.choice(len(self._weights), p=self._weights))], 1
        before = counts.get(pattern, 0)
        counts[pattern] = before + change
        if not counts[pattern]:
            del counts[pattern]
        return pattern, before, before + change

    def choose(self, names: Sequence[str]) -> str:
        return names[int(self._random.integers(len(names)))]

    def _draw_universe(self, size: int) -> tuple[str, ...]:
        found: dict[str, None] = {}
        while len(found) < size:
            kind = _KINDS[int(self._random.choice(len(_KINDS), p=_SHARES))]
            found[kind.format(*self._key_words())] = None
        return tuple(found)

    def _key_words(self) -> list[str]:
        numbers = self._random.integers(self._words, size=3)
        return [f"{letter}{number}" for letter, number in zip("abc", numbers, strict=True)]


SPACE: Final = Space("/", "orders")
DELAY_MS: Final = 10
BYTES_PER_MS: Final = 12_500  # 100 Mbit/s
DOWN_MS: Final = 1_000


@dataclass(slots=True)
class UpdateTraffic:
    """The traffic on links. Announcements to observed leaves are in `leaf_...`; those to other leaves are ignored."""

    packets: int = 0
    bytes: int = 0
    leaf_packets: int = 0
    leaf_bytes: int = 0


@dataclass(slots=True, eq=False)
class InterestBroker:
    """A broker of the tree that runs only its interest."""

    name: str
    node: str
    interest: Interest
    peers: list[InterestBroker] = field(default_factory=list)
    will_poll: bool = False


@dataclass(slots=True)
class InterestLane:
    """One direction of a link: packets arrive in order, after the link's delay and their transmission time."""

    free_ms: float = 0.0
    session: int = 0


class InterestNetwork:
    """Brokers that announce their interest to each other, without streams of messages.

    A site is an inner tree node that has only leaves as children, together with these leaves. The sites in `observed`,
    or all sites if it is None, are simulated completely. The brokers of other sites announce their clients' interest,
    but acknowledge announcements from their parents without applying them: sites are alike, so the observed ones show
    what these brokers would learn. Brokers nearer to the root are always complete.

    Cost: memory and time can grow with the square of the number of brokers, because a complete broker knows each leaf.
    """

    def __init__(
        self,
        tree: SimulatedTree,
        aggregation: Aggregation,
        patterns_max: int,
        observed: Collection[str] | None = None,
    ) -> None:
        self.tree = tree
        self.parents = parents_of(tree)
        self.scheduler = Scheduler()
        self.traffic = UpdateTraffic()
        self.applied_ms = 0
        self._aggregation = aggregation
        self._patterns_max = patterns_max
        self._lanes: dict[tuple[str, str], InterestLane] = {}
        self._blind = self._blind_nodes(observed)
        self._session = 0
        self.brokers = {
            name: InterestBroker(name, node, self._new_interest(node, name))
            for node, names in tree.brokers.items()
            for name in names
        }

    def is_observed(self, node: str) -> bool:
        """Return whether the brokers of a tree node are simulated completely."""
        return node not in self._blind

    def route(self, leaf: str, key: str) -> tuple[int, set[str]]:
        """Return the number of edges that a message from a leaf crosses, and the leaves that it reaches.

        The brokers of a tree node know the same patterns, so the first broker decides for all.
        """
        tree, crossed, reached = self.tree, 0, set[str]()
        waiting = [("", leaf)]
        while waiting:
            origin, node = waiting.pop()
            for towards in self.brokers[tree.brokers[node][0]].interest.wanting(SPACE, key):
                if towards != origin:
                    crossed += 1
                    if tree.is_leaf(towards):
                        reached.add(towards)
                    else:
                        waiting.append((node, towards))
        return crossed, reached

    def change(self, leaf: str, added: Iterable[tuple[str, str]], removed: Iterable[str]) -> None:
        """Add bindings to a leaf, given as pairs of an id and a pattern, and remove bindings by id."""
        broker = self.brokers[leaf]
        broker.interest.change([(name, Conjunction(SPACE, text), True) for name, text in added], removed)
        self._poll(broker)

    def start(self) -> None:
        """Open the links of one level of the tree after another, the deepest first, and settle after each level."""
        depths = {"inner0": 0}
        for node, parent in self.parents.items():
            depths[node] = depths[parent] + 1
        for depth in range(max(depths.values()), 0, -1):
            for node, parent in self.parents.items():
                if depths[node] == depth:
                    for name in self.tree.brokers[node]:
                        self._open(name, self.tree.brokers[parent])
            self.settle()

    def crash(self, name: str) -> int:
        """Kill a broker and restart it without state; return the time until the last announcement arrived.

        Units: simulated milliseconds after its links were opened again.
        """
        broker = self.brokers[name]
        now_ms = self.scheduler.now_ms
        for peer in broker.peers:
            peer.interest.lost(broker.node, name, now_ms)
            self._poll(peer)
        peers, broker.peers = broker.peers, []
        for peer in peers:
            peer.peers.remove(broker)
        broker.interest = self._new_interest(broker.node, name)
        self.scheduler.run_until(now_ms + DOWN_MS)
        opened_ms = self.scheduler.now_ms
        self._open(name, [peer.name for peer in peers])
        self.settle()
        return max(0, self.applied_ms - opened_ms)

    def settle(self) -> None:
        """Run until no packet is in flight and no broker has output."""
        before = -1
        self.scheduler.run_all()
        while self.scheduler.count != before:
            before = self.scheduler.count
            for broker in self.brokers.values():
                self._poll(broker)
            self.scheduler.run_all()

    def take_traffic(self) -> UpdateTraffic:
        traffic, self.traffic = self.traffic, UpdateTraffic()
        return traffic

    def knowledge(self) -> dict[str, dict[str, tuple[frozenset[str], dict[str, int]]]]:
        """Return the patterns and the virtual times that each complete broker knows for each neighbouring tree node."""
        return {
            broker.name: {
                node: (frozenset(broker.interest.roots(node, SPACE)), broker.interest.vector(node, SPACE))
                for node in self.tree.neighbours[broker.node]
            }
            for broker in self.brokers.values()
            if broker.node not in self._blind
        }

    def _new_interest(self, node: str, name: str) -> Interest:
        leaf = name if self.tree.is_leaf(node) else None
        return Interest(node, self.tree.neighbours[node], self._aggregation, self._patterns_max, leaf)

    def _blind_nodes(self, observed: Collection[str] | None) -> frozenset[str]:
        blind: set[str] = set()
        for node in sites_of(self.tree, self.parents):
            if observed is not None and node not in observed and node in self.parents:
                blind.update((node, *(other for other in self.tree.neighbours[node] if other != self.parents[node])))
        return frozenset(blind)

    def _open(self, name: str, others: Iterable[str]) -> None:
        broker = self.brokers[name]
        for other_name in others:
            other = self.brokers[other_name]
            self._session += 1
            broker.peers.append(other)
            other.peers.append(broker)
            for sender, receiver in ((broker, other), (other, broker)):
                lane = self._lanes.setdefault((sender.name, receiver.name), InterestLane())
                lane.session = self._session
                lane.free_ms = self.scheduler.now_ms
                receiver.interest.connected(sender.node, sender.name, self._session)
                self._poll_soon(receiver)

    def _poll_soon(self, broker: InterestBroker) -> None:
        """Poll a broker after all packets of this millisecond have arrived."""
        if not broker.will_poll:
            broker.will_poll = True
            self.scheduler.after(0, partial(self._poll, broker))

    def _poll(self, broker: InterestBroker) -> None:
        broker.will_poll = False
        for _, name, packet in broker.interest.take_output(self.scheduler.now_ms):
            self._send(broker, self.brokers[name], packet)

    def _send(self, sender: InterestBroker, receiver: InterestBroker, packet: Packet) -> None:
        size_bytes = len(encode(packet))
        self._count(sender, receiver, packet, size_bytes)
        lane, now_ms = self._lanes[sender.name, receiver.name], self.scheduler.now_ms
        lane.free_ms = max(lane.free_ms, now_ms) + size_bytes / BYTES_PER_MS
        delay_ms = DELAY_MS + math.ceil(lane.free_ms) - now_ms
        self.scheduler.after(delay_ms, partial(self._arrive, sender, receiver, packet, lane.session))

    def _count(self, sender: InterestBroker, receiver: InterestBroker, packet: Packet, size_bytes: int) -> None:
        node = receiver.node if isinstance(packet, Update) else sender.node
        if not self.tree.is_leaf(node):
            self.traffic.packets += 1
            self.traffic.bytes += size_bytes
        elif node not in self._blind:  # an announcement to an observed leaf, or its acknowledgement
            self.traffic.leaf_packets += 1
            self.traffic.leaf_bytes += size_bytes

    def _arrive(self, sender: InterestBroker, receiver: InterestBroker, packet: Packet, session: int) -> None:
        if self._lanes[sender.name, receiver.name].session != session:
            return
        if isinstance(packet, Update):
            self.applied_ms = self.scheduler.now_ms
            if receiver.node in self._blind and self.parents[receiver.node] == sender.node:
                self._send(receiver, sender, UpdateAck(packet.serial))
                return
        assert isinstance(packet, Update | UpdateAck | Resync)
        receiver.interest.received(sender.node, sender.name, packet, self.scheduler.now_ms)
        self._poll_soon(receiver)
