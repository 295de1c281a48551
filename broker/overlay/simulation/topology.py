"""Trees of tree nodes with one or more brokers each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker.overlay.simulation.scheduler import Dice


@dataclass(frozen=True, slots=True)
class SimulatedTree:
    """The brokers of each tree node, and the edges of the tree. A tree node with one edge is a leaf broker."""

    brokers: Mapping[str, tuple[str, ...]]
    neighbours: Mapping[str, tuple[str, ...]]

    @property
    def leaves(self) -> tuple[str, ...]:
        """Return the names of the leaf brokers."""
        return tuple(self.brokers[node][0] for node in self.brokers if self.is_leaf(node))

    def is_leaf(self, node: str) -> bool:
        """Return whether a tree node is a leaf broker's."""
        return node.startswith("leaf")


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
