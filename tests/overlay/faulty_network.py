"""A simulated overlay whose links and data folders fail, and random and regular trees for it."""

from __future__ import annotations

from typing import Any

from broker.overlay.simulation.leaf_member import FolderCopy, LeafMember
from broker.overlay.simulation.link import SimulatedLink
from broker.overlay.simulation.member import Dice
from broker.overlay.simulation.network import Network, SimulatedTree


def random_tree(dice: Dice, brokers: int, siblings_max: int = 3) -> SimulatedTree:
    """Return a random tree with about this many brokers, at least 3; the inner nodes are redundant at random."""
    inner: dict[str, tuple[str, ...]] = {}
    neighbours: dict[str, list[str]] = {}
    left = brokers
    nodes = max(1, brokers // 6)
    for place in range(nodes):
        node = f"inner{place}"
        siblings = min(dice.randint(1, siblings_max), max(1, left - 2 * (nodes - place)))
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


class FaultyNetwork(Network):
    """A network with more faults than crashes of brokers."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.cut_for_good: list[SimulatedLink] = []

    def replace_folder(self, leaf: LeafMember, copy: FolderCopy | None, back_after_ms: int) -> None:
        """Kill a leaf, and start it again with an older copy of its data folder, or with an empty one."""
        if leaf.is_running:
            self.crash(leaf, back_after_ms)
            leaf.replace_folder(copy)

    def cut(self, link: SimulatedLink, back_after_ms: int) -> None:
        """Cut a link for a while."""
        link.cut()
        self.scheduler.after(back_after_ms, lambda: self._mend(link))

    def cut_one_for_good(self) -> None:
        """Cut a link of a broker whose tree node has other brokers, which keep the tree connected."""
        names = {name for brokers in self.topology.brokers.values() if len(brokers) > 1 for name in brokers}
        links = [link for link in self.links if any(member.name in names for member in link.members)]
        if links:
            self.cut_for_good = [self.dice.choice(links)]
            self.cut(self.cut_for_good[0], 0)

    def cut_one_way(self, link: SimulatedLink, noticed_after_ms: int) -> None:
        """Lose all packets in one direction until heartbeats notice and the link is opened again."""
        link.lose_from(self.dice.choice([member.name for member in link.members]))

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
        """End all faults, so that every broker runs and every link is up soon."""
        for link in self.links:
            if link not in self.cut_for_good:
                link.release()
        for member in self.members():
            self.restart(member)
        for link in self.links:
            if not link.is_up and not link.held:
                link.reopen_later()

    def _mend(self, link: SimulatedLink) -> None:
        if link not in self.cut_for_good:
            link.release()
        link.reopen_later()
