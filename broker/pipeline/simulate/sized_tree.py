"""A tree of tree nodes for a number of brokers, its sites, and the least that a message must cross in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.overlay.simulation.topology import SimulatedTree

__all__ = ["least_crossings", "parents_of", "sites_of", "sized_tree"]


def sized_tree(brokers: int, fan_out: int, redundancy: int) -> SimulatedTree:
    """Return a tree with exactly so many brokers, as even as possible.

    Inner tree nodes have `redundancy` brokers and `fan_out` children; the last of them have up to as many more children
    as the number of brokers needs. The node `inner0` is the root.
    """
    inner = max(1, (brokers - 1) // (fan_out - 1 + redundancy))
    leaves = brokers - inner * redundancy
    assert leaves > 1, "a tree has two leaves or more"
    nodes = [f"inner{place}" for place in range(inner)]
    held = {node: tuple(f"{node}.{number}" for number in range(redundancy)) for node in nodes}
    neighbours: dict[str, list[str]] = {node: [] for node in nodes}
    for place in range(1, inner + leaves):
        parent = (place - 1) // fan_out
        if parent >= inner:
            parent = inner - 1 - place % inner
        node = nodes[place] if place < inner else f"leaf{place - inner}"
        if place >= inner:
            held[node] = (node,)
            neighbours[node] = []
        neighbours[nodes[parent]].append(node)
        neighbours[node].append(nodes[parent])
    return SimulatedTree(held, {node: tuple(names) for node, names in neighbours.items()})


def parents_of(tree: SimulatedTree, root: str = "inner0") -> dict[str, str]:
    """Return the parent of each tree node but the root, parents before children."""
    parents: dict[str, str] = {}
    waiting = [root]
    for node in waiting:
        for other in tree.neighbours[node]:
            if parents.get(node) != other:
                parents[other] = node
                waiting.append(other)
    return parents


def sites_of(tree: SimulatedTree, parents: dict[str, str]) -> list[str]:
    """Return the sites: the inner tree nodes whose children are all leaves."""
    return [
        node
        for node in tree.brokers
        if not tree.is_leaf(node)
        and all(tree.is_leaf(other) for other in tree.neighbours[node] if other != parents.get(node))
    ]


def least_crossings(parents: Mapping[str, str], leaf: str, wanting: Iterable[str]) -> int:
    """Return the edges of the smallest part of the tree that joins a leaf with all others that want its message."""
    below: dict[str, int] = {}  # how many of the leaves are at a node or below
    joined = {leaf, *wanting}
    for end in joined:
        node: str | None = end
        while node is not None:
            below[node] = below.get(node, 0) + 1
            node = parents.get(node)
    return sum(1 for node, count in below.items() if node in parents and count < len(joined))
