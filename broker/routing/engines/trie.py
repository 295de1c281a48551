"""A trie over the words of wildcard patterns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from sys import intern
from typing import Generic, TypeVar

from broker.routing.engines.trie_walk import Node, match_floating, walk
from broker.routing.pattern import AMQP, HASH, Pattern, TopicDialect

T = TypeVar("T")


class Trie(Generic[T]):
    """An engine that walks a trie of patterns with a key, word by word.

    The walk visits all nodes that the words so far may lead to. The part of a pattern after its last `#` must match the
    end of the key, so it is compared once, backwards, instead of at each later word. Only the words between two `#` may
    match anywhere: a node there is visited at most once per word, so several `#` cost at most nodes x words, however
    many ways of matching there are.

    Invariant: every node except the root leads to a target. `visited` counts the nodes visited, except by `find`.
    Source: "Very fast and scalable topic routing", part 1 (RabbitMQ, 2010), whose trie tries the part after a `#` with
        every tail of the key.
    """

    def __init__(self, dialect: TopicDialect = AMQP) -> None:
        self.visited = 0
        self._words = dialect.words
        self._root: Node[T] = Node()
        self.size = 0

    def counts(self) -> Mapping[str, int]:
        """Return the number of nodes without the root. Cost: O(nodes)."""
        pending = self._root.children()
        nodes = 0
        while pending:
            nodes += 1
            pending += pending.pop().children()
        return {"nodes": nodes}

    def add(self, pattern: Pattern, target: T) -> T | None:
        """Add a pattern with its target and return None, or return the target that the pattern already has.

        Cost: the words of the pattern.
        """
        steps, leaf_from, open_end = _steps(pattern.words)
        node = self._root
        visited = 1
        for position, step in enumerate(steps):
            visited += 1
            if node.tail is not None:
                known = _of_leaf(node, steps[position:], open_end)
                if known is not None:
                    return known
                node.open_leaf()
            child = node.child(step)
            if isinstance(child, Node):
                node = child
            elif child is not None:
                if position == len(steps) - 1 and not open_end:
                    return child
                node = node.graft(step, child)
            elif position < leaf_from:
                node = node.graft(step)
            else:
                remaining = steps[position + 1 :]
                node.graft_leaf(step, remaining, None if open_end else target, target if open_end else None)
                self.visited += visited
                self.size += 1
                return None
        known = node.rest if open_end else node.target
        if known is not None and not node.tail:
            return known
        if node.tail is not None:
            node.open_leaf()
        self.visited += visited
        if open_end:
            node.end_open(target)
        else:
            node.end_pattern(target)
        self.size += 1
        return None

    def find(self, pattern: Pattern) -> T | None:
        steps, _, open_end = _steps(pattern.words)
        path = self._path(steps)
        return None if path is None else _target(path, steps, open_end)

    def remove(self, pattern: Pattern) -> T:
        """Remove the pattern and the nodes that no other pattern needs, and return its target. Cost: its words.
        Raises: KeyError if the pattern is missing.
        """
        steps, _, open_end = _steps(pattern.words)
        path = self._path(steps)
        target = None if path is None else _target(path, steps, open_end)
        if path is None or target is None:
            raise KeyError(pattern.text)
        self.visited += len(path)
        node = path.pop()
        if node.tail is None and len(path) < len(steps):
            node.prune(steps[-1])
        elif open_end:
            node.end_open(None)
        else:
            node.end_pattern(None)
        self.size -= 1
        while path and node.is_empty():
            node = path.pop()
            node.prune(steps[len(path)])
        return target

    def _path(self, steps: Sequence[str]) -> list[Node[T]] | None:
        """Return the nodes along the steps, up to a leaf that may contain the rest, or None if a step is missing."""
        node = self._root
        path = [node]
        for step in steps:
            if node.tail is not None:
                break
            child = node.child(step)
            if child is None:
                return None
            if not isinstance(child, Node):
                break
            path.append(child)
            node = child
        return path

    def match(self, key: str) -> list[T]:
        found: list[T] = []
        self.collect(self._words(key), found)
        return found

    def collect(self, words: list[str], found: list[T]) -> None:
        """Append the targets of the patterns that match the words of a key, each once.

        Cost: the nodes reached, at most nodes x words.
        """
        floats: list[tuple[int, Node[T]]] = []
        visited = walk(self._root, words, 0, floats, found)
        if floats:
            floats.sort(key=itemgetter(0), reverse=True)
            visited += match_floating(floats, words, found)
        self.visited += visited


def _steps(words: tuple[str, ...]) -> tuple[tuple[str, ...], int, bool]:
    """Return the steps from the root to the end of a pattern, the first step that may be in a leaf, and whether the
    pattern ends with `#`.

    Shapes: one step `#` leads to the words after the last `#`, in reverse order; two, to the words before another `#`.
    """
    open_end = bool(words) and words[-1] == HASH
    steps: list[str] = []
    leaf_from = 0
    hashes = words.count(HASH)
    for position, word in enumerate(words):
        if word != HASH:
            steps.append(intern(word))
            continue
        hashes -= 1
        if hashes:
            steps += (HASH, HASH)
            leaf_from = len(steps)
        elif not open_end:
            steps.append(HASH)
            leaf_from = len(steps)
            steps += [intern(behind) for behind in words[:position:-1]]
            break
    return tuple(steps), leaf_from, open_end


def _target(path: Sequence[Node[T]], steps: tuple[str, ...], open_end: bool) -> T | None:
    """Return the target at the end of a path, or None if the pattern with these steps is missing."""
    node, remaining = path[-1], steps[len(path) - 1 :]
    if node.tail is None and len(remaining) == 1 and not open_end:
        child = node.child(remaining[0])
        return None if isinstance(child, Node) else child
    return _of_leaf(node, remaining, open_end)


def _of_leaf(node: Node[T], remaining: tuple[str, ...], open_end: bool) -> T | None:
    """Return the target of the pattern whose remaining steps at a node are these, or None if there is none."""
    if (node.tail or ()) != remaining:
        return None
    return node.rest if open_end else node.target
