"""A simulated overlay whose links and data folders fail, and random and regular trees for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from broker.overlay.aggregation import Aggregation
from broker.overlay.packets import Space, StreamName
from broker.overlay.simulation.member import Dice, SimulatedBroker
from broker.overlay.simulation.network import Network, SimulatedTree
from broker.overlay.source import LeafState
from tests.overlay.faulty_leaf import FaultyLeaf, SimulatedBinding, SimulatedPublish
from tests.overlay.faulty_link import FaultyLink, Statistics
from tests.overlay.faulty_log import FaultyStream


def random_tree(dice: Dice, brokers: int) -> SimulatedTree:
    """Return a random tree of about this many brokers, at least 3; each inner node has one to three brokers."""
    inner: dict[str, tuple[str, ...]] = {}
    neighbours: dict[str, list[str]] = {}
    left = brokers
    nodes = max(1, brokers // 6)
    for place in range(nodes):
        node = f"inner{place}"
        siblings = min(dice.randint(1, 3), max(1, left - 2 * (nodes - place)))
        inner[node] = tuple(f"{node}.{number}" for number in range(siblings))
        neighbours[node] = []
        left -= siblings
        if place:
            _join(neighbours, node, f"inner{dice.randint(0, place - 1)}")
    leaves: dict[str, tuple[str, ...]] = {}
    bare = [node for node in inner if len(neighbours[node]) < 2]
    for place in range(max(2, left, len(bare) + (nodes == 1))):
        node = f"leaf{place}"
        leaves[node] = (node,)
        neighbours[node] = []
        _join(neighbours, node, bare[place] if place < len(bare) else dice.choice(list(inner)))
    return SimulatedTree(inner | leaves, {node: tuple(names) for node, names in neighbours.items()})


def regular_tree(fan_out: int, depth: int, siblings: int) -> SimulatedTree:
    """Return a regular tree: `depth` levels of inner nodes below the root, and a leaf at each end."""
    brokers: dict[str, tuple[str, ...]] = {}
    neighbours: dict[str, list[str]] = {}
    level = [_inner(brokers, neighbours, "inner0", siblings)]
    for _ in range(depth):
        below: list[str] = []
        for parent in level:
            for _ in range(fan_out):
                node = _inner(brokers, neighbours, f"inner{len(brokers)}", siblings)
                _join(neighbours, node, parent)
                below.append(node)
        level = below
    for parent in level:
        for _ in range(fan_out):
            node = f"leaf{len(brokers)}"
            brokers[node] = (node,)
            neighbours[node] = []
            _join(neighbours, node, parent)
    return SimulatedTree(brokers, {node: tuple(names) for node, names in neighbours.items()})


def _inner(brokers: dict[str, tuple[str, ...]], neighbours: dict[str, list[str]], node: str, siblings: int) -> str:
    brokers[node] = tuple(f"{node}.{number}" for number in range(siblings))
    neighbours[node] = []
    return node


def _join(neighbours: dict[str, list[str]], one: str, other: str) -> None:
    neighbours[one].append(other)
    neighbours[other].append(one)


@dataclass(frozen=True, slots=True)
class FolderCopy:
    """A copy of a leaf's data folder."""

    streams: dict[Space, FaultyStream]
    saved: LeafState
    bindings: dict[str, SimulatedBinding]
    published: dict[Space, list[SimulatedPublish]]
    arrived: dict[int, int]
    received_numbers: dict[StreamName, dict[int, int]]
    positions: dict[StreamName, int]


def folder_copy(leaf: FaultyLeaf) -> FolderCopy:
    """Return a copy of the data folder."""
    return FolderCopy(
        {space: stream_copy(stream) for space, stream in leaf.log.streams.items()},
        leaf.saved,
        {name: binding for name, binding in leaf.bindings.items() if binding.durable and binding.start_point},
        {
            space: [m for m in messages if m.number is None or m.number <= leaf.log.streams[space].durable]
            for space, messages in leaf.published.items()
        },
        dict(leaf.arrived),
        {stream: dict(numbers) for stream, numbers in leaf.received_numbers.items()},
        dict(leaf.positions),
    )


def stream_copy(stream: FaultyStream) -> FaultyStream:
    """Return the stream as in a copy of the data folder."""
    copy = FaultyStream(stream._log, stream._space, stream.durable)
    copy.elements = {number: element for number, element in stream.elements.items() if number <= stream.durable}
    copy.numbers = list(copy.elements)
    copy.trimmed, copy.lost = stream.trimmed, stream.lost
    return copy


def restore(leaf: FaultyLeaf, copy: FolderCopy | None) -> None:
    """Replace the data folder of a stopped broker with an older copy, or an empty one."""
    leaf.replaced = True
    for space, messages in leaf.published.items():
        leaf.lost_life[space] += messages  # a reference, so that their ids stay unique
    leaf.virtual_times = []
    leaf._untold = []
    if copy is None:
        before = leaf._dice.choice((0, 0, 1_000))  # a number from the clock
        streams = {space: FaultyStream(leaf.log, space, before) for space in leaf.log.streams}
        copy = FolderCopy(streams, LeafState(), {}, {}, {}, {}, {})
    for space, stream in copy.streams.items():
        leaf.copied.update(map(id, stream.elements.values()))
        leaf.log.streams[space] = stream_copy(stream)
    leaf.saved = copy.saved
    leaf.bindings = dict(copy.bindings)
    for binding in leaf.bindings.values():
        binding.got &= copy.arrived.keys()
    leaf.published = {space: list(copy.published.get(space, ())) for space in leaf.log.streams}
    leaf.arrived = dict(copy.arrived)
    leaf.received_numbers = {stream: dict(numbers) for stream, numbers in copy.received_numbers.items()}
    leaf.positions = dict(copy.positions)


class FaultyNetwork(Network):
    """A network with faults of links and data folders beside crashes."""

    leaves: dict[str, FaultyLeaf]  # type: ignore[assignment]
    links: list[FaultyLink]  # type: ignore[assignment]

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.statistics = Statistics()
        self.on_packet = self.statistics.count
        self.cut_for_good: list[FaultyLink] = []
        self.on_replace: Callable[[FaultyLeaf], None] = lambda _leaf: None

    def _leaf(self, name: str, neighbour: str, spaces: Sequence[Space], aggregation: Aggregation) -> FaultyLeaf:
        return FaultyLeaf(name, neighbour, spaces, self.scheduler, self.dice, aggregation, self.patterns_max)

    def _link(self, one: SimulatedBroker, other: SimulatedBroker) -> FaultyLink:
        return FaultyLink(one, other, self.scheduler, self.dice, self._on_packet)

    def replace_folder(self, leaf: FaultyLeaf, copy: FolderCopy | None, back_after_ms: int) -> None:
        """Kill a leaf, and restart it with an older copy of its data folder, or an empty one."""
        if leaf.is_running:
            self.crash(leaf, back_after_ms)
            restore(leaf, copy)
            self.on_replace(leaf)

    def cut(self, link: FaultyLink, back_after_ms: int) -> None:
        """Cut a link for a while."""
        link.cut()
        self.scheduler.after(back_after_ms, lambda: self._mend(link))

    def cut_one_for_good(self) -> None:
        """Cut a link for good, chosen so that redundant brokers keep the tree connected."""
        names = {name for brokers in self.topology.brokers.values() if len(brokers) > 1 for name in brokers}
        links = [link for link in self.links if any(member.name in names for member in link.members)]
        if links:
            self.cut_for_good = [self.dice.choice(links)]
            self.cut(self.cut_for_good[0], 0)

    def cut_one_way(self, link: FaultyLink, noticed_after_ms: int) -> None:
        """Lose all packets in one direction, until missing heartbeats reopen the link."""
        link.one_way = self.dice.choice([member.name for member in link.members])

        def notice() -> None:
            link.close()
            link.reopen_later()

        self.scheduler.after(noticed_after_ms, notice)

    def behind(self, node: str, neighbour: str) -> list[str]:
        """Return the brokers behind a neighbour, seen from a node."""
        found: list[str] = []
        waiting = [(node, neighbour)]
        while waiting:
            origin, here = waiting.pop()
            found += self.topology.brokers[here]
            waiting += [(here, there) for there in self.topology.neighbours[here] if there != origin]
        return found

    def heal(self) -> None:
        """End all faults: restart every broker and reopen every link."""
        for link in self.links:
            if link not in self.cut_for_good:
                link.held = False
        for member in self.members():
            self.restart(member)
        for link in self.links:
            if not link.is_up and not link.held:
                link.reopen_later()

    def _mend(self, link: FaultyLink) -> None:
        if link not in self.cut_for_good:
            link.held = False
        link.reopen_later()
