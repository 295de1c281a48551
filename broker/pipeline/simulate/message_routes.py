"""The links that a message crosses: with forwarding, with flooding, and at least."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from broker.overlay.packets import Data, StreamName, StreamRun
from broker.overlay.wire import encode
from broker.pipeline.simulate.interest_network import SPACE, InterestNetwork

__all__ = ["CONTENT", "LinkCrossings", "least_crossings", "route", "run_bytes"]

CONTENT = bytes(128)
"""Content header and body of a message."""


@dataclass(slots=True)
class LinkCrossings:
    """Crossings of messages over edges of the tree. A message crosses one link of an edge, however many there are."""

    forwarded: int = 0
    needed: int = 0
    flooded: int = 0
    forwarded_bytes: int = 0
    flooded_bytes: int = 0

    def add(self, leaf: str, key: str, forwarded: int, needed: int, edges: int) -> None:
        """Count a message."""
        size_bytes = run_bytes(leaf, key)
        self.forwarded += forwarded
        self.needed += needed
        self.flooded += edges
        self.forwarded_bytes += forwarded * size_bytes
        self.flooded_bytes += edges * size_bytes


def run_bytes(leaf: str, key: str) -> int:
    """Return the size of a run with one message."""
    return len(encode(StreamRun(StreamName(leaf, SPACE), 1, 1, 1, (Data(1, key, CONTENT),))))


def route(network: InterestNetwork, leaf: str, key: str) -> tuple[int, set[str]]:
    """Return how many edges a message of a leaf crosses by what the brokers know, and the leaves that it reaches.

    The brokers of a tree node know the same, so that the first decides for all.
    """
    tree, crossed, reached = network.tree, 0, set[str]()
    waiting = [("", leaf)]
    while waiting:
        origin, node = waiting.pop()
        interest = network.brokers[tree.brokers[node][0]].interest
        for towards in interest.wanting(SPACE, key):
            if towards != origin:
                crossed += 1
                if tree.is_leaf(towards):
                    reached.add(towards)
                else:
                    waiting.append((node, towards))
    return crossed, reached


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
