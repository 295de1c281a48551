"""A simulated overlay: the tree of its brokers, and what its clients subscribe to and publish, drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from broker.overlay.simulation.network import SimulatedTree
from broker.routing.index import TopicIndex

LEAF_PATTERNS: Final = 20
"""Distinct patterns that the clients of one leaf are interested in."""
_KINDS: Final = ("{0}.{1}.{2}", "{0}.{1}.*", "*.{1}.{2}", "{0}.#")
_SHARES: Final = (0.7, 0.2, 0.09, 0.01)


def sized_tree(brokers: int, fan_out: int, redundancy: int) -> SimulatedTree:
    """Return a tree with exactly this many brokers, as even as possible.

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


class Workload:
    """What the clients of each leaf want, and what is published.

    The universe has `patterns` distinct patterns over keys of three words. The clients of each leaf choose among
    LEAF_PATTERNS of them, the first twice as often as the second, three times as often as the third, and so on. Equal
    subscriptions of a leaf are not kept one by one: a multinomial draw says how many there are of each, so that 10^9 of
    them cost as much as the patterns. Leaves are alike wherever they are; keys are uniform over the words.

    Shapes: `counts` has subscriptions by pattern, for each leaf.
    """

    def __init__(self, patterns: int, subscriptions: int, leaves: Sequence[str], seed: int) -> None:
        self._dice: Any = np.random.default_rng(seed)
        self._words = max(3, 1 + round(patterns ** (1 / 3)))
        self.universe = self._draw_universe(patterns)
        self._weights = 1 / np.arange(1, 1 + min(LEAF_PATTERNS, len(self.universe)))
        self._weights /= self._weights.sum()
        self._profiles: dict[str, tuple[str, ...]] = {}
        self.counts: dict[str, dict[str, int]] = {}
        each, more = divmod(subscriptions, len(leaves))
        for place, leaf in enumerate(leaves):
            chosen = self._dice.choice(len(self.universe), len(self._weights), replace=False)
            profile = self._profiles[leaf] = tuple(self.universe[number] for number in chosen)
            drawn = self._dice.multinomial(each + (place < more), self._weights).tolist()
            self.counts[leaf] = {pattern: count for pattern, count in zip(profile, drawn, strict=True) if count}

    def key(self) -> str:
        """Draw the routing key of a message."""
        return ".".join(self._key_words())

    def index(self) -> TopicIndex:
        """Return an index of the leaves that want a key."""
        index = TopicIndex()
        for leaf, counts in self.counts.items():
            for pattern in counts:
                index.add(index.parse(pattern), leaf)
        return index

    def change(self, leaf: str) -> tuple[str, int, int]:
        """Let one client of a leaf subscribe or, as often, unsubscribe; return the pattern and its old and new count.

        Every subscription is as likely to end as any other.
        """
        counts = self.counts[leaf]
        total = sum(counts.values())
        if total and self._dice.random() < 0.5:
            shares = np.array(list(counts.values())) / total
            pattern, change = list(counts)[int(self._dice.choice(len(counts), p=shares))], -1
        else:
            pattern, change = self._profiles[leaf][int(self._dice.choice(len(self._weights), p=self._weights))], 1
        before = counts.get(pattern, 0)
        counts[pattern] = before + change
        if not counts[pattern]:
            del counts[pattern]
        return pattern, before, before + change

    def one_of(self, names: Sequence[str]) -> str:
        """Draw a name."""
        return names[int(self._dice.integers(len(names)))]

    def _draw_universe(self, size: int) -> tuple[str, ...]:
        found: dict[str, None] = {}
        while len(found) < size:
            kind = _KINDS[int(self._dice.choice(len(_KINDS), p=_SHARES))]
            found[kind.format(*self._key_words())] = None
        return tuple(found)

    def _key_words(self) -> list[str]:
        return [
            f"{letter}{number}" for letter, number in zip("abc", self._dice.integers(self._words, size=3), strict=True)
        ]
