"""Patterns with more than one `#`."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from broker.routing.dialect import AMQP, TopicDialect
from broker.routing.engines.bitmap_bucket import Solo
from broker.routing.engines.pattern_tree import PatternTree
from broker.routing.pattern import HASH, STAR

T = TypeVar("T")


class FloatingPatterns(Generic[T]):
    """Maps patterns with more than one `#` to targets."""

    __slots__ = ("_anchors", "size", "visited")

    def __init__(self, dialect: TopicDialect = AMQP) -> None:
        self.visited = 0
        self.size = 0
        self._anchors: dict[str, PatternTree[Solo[T]]] = {}

    def gather(self, plain: list[str], words: list[str], length: int, found: list[T]) -> None:
        candidates: list[Solo[T]] = []
        anchors = self._anchors
        for word in plain:
            tree = anchors.get(word)
            if tree is not None:
                self.visited += 1
                tree.gather(words, length, candidates)
        for solo in candidates:
            target = solo.target
            if target is not None and passes(solo.words, solo.head, plain):
                found.append(target)

    def add(self, solo: Solo[T]) -> None:
        anchor = solo.words[solo.head + 1]
        tree = self._anchors.get(anchor)
        if tree is None:
            tree = self._anchors[anchor] = PatternTree()
        tree.add(Solo(solo.words, solo))
        self.size += 1

    def find(self, solo: Solo[T]) -> T | None:
        tree = self._anchors.get(solo.words[solo.head + 1])
        if tree is None:
            return None
        known = tree.find(Solo(solo.words, None))
        return None if known is None else known.target

    def remove(self, solo: Solo[T]) -> T | None:
        anchor = solo.words[solo.head + 1]
        tree = self._anchors.get(anchor)
        if tree is None:
            return None
        known = tree.remove(Solo(solo.words, None))
        if known is None:
            return None
        self.size -= 1
        if not tree.size:
            del self._anchors[anchor]
        return known.target

    def counts(self) -> tuple[int, int, int]:
        c = [0, 0, 0]
        for t in self._anchors.values():
            for i, x in enumerate(t.counts()):
                c[i] += x
        return (c[0], c[1], c[2])


def passes(pattern: tuple[str, ...], head: int, words: list[str]) -> bool:
    """Greedy."""
    count = len(pattern)
    length = len(words)
    start = head  # first word not yet taken
    place = head + 1
    while True:
        end = place
        while end < count and pattern[end] != HASH:
            end += 1
        block = end - place
        if end == count:
            return start + block <= length
        last = length - block
        while start <= last:
            index = 0
            while index < block and (pattern[place + index] == words[start + index] or pattern[place + index] == STAR):
                index += 1
            if index == block:
                break
            start += 1
        else:
            return False
        start += block
        place = end + 1
