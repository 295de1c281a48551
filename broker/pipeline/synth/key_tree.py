"""The popularity of routing keys, word by word: what is frequent by name, the rest as a Zipf tail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import log
from typing import Any, Final

from broker.routing.pattern import split_words

__all__ = ["KeyNode", "Tail", "build_tree"]

HEAD_MAX: Final = 64  # words of one node that are kept by name
HEAD_SHARE: Final = 5000  # and each of them has at least this part of all messages
EXPONENT_MAX: Final = 4.0


@dataclass(slots=True)
class Tail:
    """The words of a node that are too rare to be named.

    Their shares fall as a Zipf law from rank to rank, and the first one follows those of the head. All have the same
    words below them, those of the rare ones taken together.
    """

    words: int
    messages: int
    first: int
    exponent: float
    below: KeyNode

    def weights(self) -> list[float]:
        """Return how the words share the tail's messages, the most frequent one first. Cost: the words."""
        shares = [rank**-self.exponent for rank in range(self.first, self.first + self.words)]
        total = sum(shares)
        return [share / total for share in shares]

    def name(self, rank: int) -> str:
        """Return what stands for the word of a rank, which begins at 1."""
        return f"~{rank}"


@dataclass(slots=True)
class KeyNode:
    """What all keys with one beginning have in common.

    Invariant: `messages` are those that end here, those below the head and those below the tail.
    """

    messages: int = 0
    ends: int = 0
    head: dict[str, KeyNode] = field(default_factory=dict)
    tail: Tail | None = None

    @property
    def nodes(self) -> int:
        """How many nodes the tree has."""
        below = sum(child.nodes for child in self.head.values())
        return 1 + below + (self.tail.below.nodes if self.tail else 0)

    def renamed(self, rename: Callable[[str], str]) -> KeyNode:
        """Return the tree with other words in the head."""
        head = {rename(word): child.renamed(rename) for word, child in self.head.items()}
        tail = self.tail
        if tail is not None:
            tail = replace(tail, below=tail.below.renamed(rename))
        return KeyNode(self.messages, self.ends, head, tail)

    def to_json(self) -> dict[str, Any]:
        """Return the tree as JSON can say it; what is empty is left out."""
        made: dict[str, Any] = {"n": self.messages}
        if self.ends:
            made["ends"] = self.ends
        if self.head:
            made["head"] = {word: child.to_json() for word, child in self.head.items()}
        if self.tail is not None:
            tail = self.tail
            made["tail"] = {
                "words": tail.words,
                "n": tail.messages,
                "first": tail.first,
                "exponent": tail.exponent,
                "below": tail.below.to_json(),
            }
        return made

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> KeyNode:
        """Return the tree of `to_json`. Raises: KeyError, TypeError, ValueError."""
        head = {word: cls.from_json(child) for word, child in found.get("head", {}).items()}
        made = found.get("tail")
        tail = None
        if made is not None:
            numbers = (int(made["words"]), int(made["n"]), int(made["first"]), float(made["exponent"]))
            tail = Tail(*numbers, cls.from_json(made["below"]))
        return cls(int(found["n"]), int(found.get("ends", 0)), head, tail)


def build_tree(keys: Iterable[tuple[str, int]], head_max: int = HEAD_MAX) -> KeyNode:
    """Return the tree of routing keys with their counts. Cost: the words of all keys."""
    root = KeyNode()
    for key, messages in keys:
        node = root
        node.messages += messages
        for word in split_words(key):
            node = node.head.setdefault(word, KeyNode())
            node.messages += messages
        node.ends += messages
    fold(root, root.messages / HEAD_SHARE, head_max)
    return root


def fold(node: KeyNode, least: float, head_max: int) -> None:
    """Move what is rare from the heads of a tree into their tails."""
    ranked = sorted(node.head.items(), key=lambda item: (-item[1].messages, item[0]))
    named = [item for item in ranked[:head_max] if item[1].messages >= least]
    rare = [child for _, child in ranked[len(named) :]]
    node.head = dict(named)
    if rare:
        counts = [child.messages for child in rare]
        below = KeyNode()
        for child in rare:
            merge(below, child)
        first = len(named) + 1
        node.tail = Tail(len(rare), sum(counts), first, zipf_exponent(counts, first), below)
        fold(below, least, head_max)
    for _, child in named:
        fold(child, least, head_max)


def merge(node: KeyNode, other: KeyNode) -> None:
    """Add another tree, which has no tails yet, to a node."""
    node.messages += other.messages
    node.ends += other.ends
    for word, child in other.head.items():
        merge(node.head.setdefault(word, KeyNode()), child)


def zipf_exponent(counts: list[int], first: int) -> float:
    """Return how steeply falling counts fall: the slope over their ranks, both in logarithms, by least squares."""
    if len(counts) < 2:
        return 0.0
    points = [(log(rank), log(number)) for rank, number in enumerate(counts, first)]
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return round(min(max(-slope, 0.0), EXPONENT_MAX), 4)
