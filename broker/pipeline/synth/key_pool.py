"""Keys to draw from: those of a key tree with their shares, frequent ones exactly, rare ones as chance has it."""

from __future__ import annotations

import heapq
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, count

from broker.amqp.wire import SHORT_STRING_MAX_BYTES
from broker.pipeline.synth.key_tree import KeyNode, Tail

__all__ = ["frequent_keys", "pool_of"]


Words = tuple[str, ...]


def pool_of(root: KeyNode, keys_max: int, seed: int) -> list[tuple[str, float]]:
    """Return about so many keys at most, with shares that add up to 1.

    Invariant: a key that has at least one in `keys_max` messages has its own share; how the others share what is left
        is drawn, the same for the same seed.
    """
    known = dict(frequent_keys(root, 1 / keys_max))
    left = 1.0 - sum(known.values())
    drawn: Counter[str] = Counter()
    if left > 1 / keys_max:
        walk = KeyWalk(root, random.Random(seed))  # noqa: S311 - chance, not a secret
        keys = (walk.key() for _ in range(keys_max))
        drawn.update(key for key in keys if key not in known and len(key.encode()) <= SHORT_STRING_MAX_BYTES)
    pool = [*known.items(), *((key, left * times / drawn.total()) for key, times in drawn.items())]
    total = sum(share for _, share in pool)
    return [(key, share / total) for key, share in pool]


def frequent_keys(root: KeyNode, least: float) -> Iterator[tuple[str, float]]:
    """Yield the keys that have at least that share of all messages, the most frequent first.

    Cost: no branch that has less is looked at, so the words of a key over the share.
    """
    turn = count()
    heap: list[tuple[float, int, Words, KeyNode | None, Tail | None, int]] = []
    weights: dict[int, list[float]] = {}

    def wait(share: float, words: Words, node: KeyNode | None, tail: Tail | None = None, rank: int = 0) -> None:
        if share >= least:
            heapq.heappush(heap, (-share, next(turn), words, node, tail, rank))

    wait(1.0, (), root)
    while heap:
        negative, _, words, node, tail, rank = heapq.heappop(heap)
        share = -negative
        if tail is not None:  # its words wait one behind the other: the next is not more frequent
            of_tail = weights[id(tail)]
            wait(share, (*words, tail.name(rank + 1)), tail.below)
            if rank + 1 < tail.words:
                wait(share * of_tail[rank + 1] / of_tail[rank], words, None, tail, rank + 1)
        elif node is None:
            key = ".".join(words)
            if len(key.encode()) <= SHORT_STRING_MAX_BYTES:
                yield key, share
        elif node.messages:
            for word, child in node.head.items():
                wait(share * child.messages / node.messages, (*words, word), child)
            wait(share * node.ends / node.messages, words, None)
            if node.tail is not None:
                if id(node.tail) not in weights:
                    weights[id(node.tail)] = node.tail.weights()
                first = weights[id(node.tail)][0]
                wait(share * node.tail.messages / node.messages * first, words, None, node.tail, 0)


class KeyWalk:
    """Draws keys by walking down a tree."""

    def __init__(self, root: KeyNode, chance: random.Random) -> None:
        self._root = root
        self._chance = chance
        self._ways: dict[int, tuple[list[int], list[tuple[str, KeyNode]]]] = {}
        self._tails: dict[int, list[float]] = {}

    def key(self) -> str:
        """Return a key; each comes as often as its share says."""
        node = self._root
        words: list[str] = []
        while True:
            bounds, ways = self._of(node)
            at = bisect_right(bounds, self._chance.randrange(max(node.messages, 1)))
            if at < len(ways):
                word, node = ways[at]
                words.append(word)
            elif node.tail is not None and at == len(ways):
                words.append(node.tail.name(self._rank(node.tail)))
                node = node.tail.below
            else:
                return ".".join(words)

    def _of(self, node: KeyNode) -> tuple[list[int], list[tuple[str, KeyNode]]]:
        known = self._ways.get(id(node))
        if known is None:
            ways = list(node.head.items())
            counts = [child.messages for _, child in ways]
            if node.tail is not None:
                counts.append(node.tail.messages)
            known = self._ways[id(node)] = (list(accumulate(counts)), ways)
        return known

    def _rank(self, tail: Tail) -> int:
        bounds = self._tails.get(id(tail))
        if bounds is None:
            bounds = self._tails[id(tail)] = list(accumulate(tail.weights()))
        return min(bisect_right(bounds, self._chance.random()), tail.words - 1) + 1
