"""A trie over the words of wildcard patterns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from broker.routing.dialect import AMQP, TopicDialect
from broker.routing.pattern import HASH, STAR, Pattern

T = TypeVar("T")

END = "end of the key"  # told apart by identity; where it leads is never followed, for no round comes after it


class Node(Generic[T]):
    """One place in the trie: what may follow, and the targets of the patterns that end here.

    `target` belongs to the pattern that ends here, `rest` to the one that ends here but for a last `#`; `hash` exists
    only where something follows the `#`. A leaf stands for a single pattern: `tail` holds the words that it has left,
    none of them a `#`, and only one of `target` and `rest` is there. Most patterns share but their first words, so
    leaves spare most of the nodes.
    """

    __slots__ = ("hash", "rest", "star", "tail", "target", "words")

    def __init__(self) -> None:
        self.words: dict[str, Node[T]] | None = None
        self.star: Node[T] | None = None
        self.hash: Node[T] | None = None
        self.target: T | None = None
        self.rest: T | None = None
        self.tail: tuple[str, ...] | None = None

    def is_empty(self) -> bool:
        """Return whether nothing ends here or follows."""
        return (
            self.words is None and self.star is None and self.hash is None and self.target is None and self.rest is None
        )

    def child(self, word: str) -> Node[T] | None:
        """Return the node behind one word of a pattern."""
        if word == STAR:
            return self.star
        if word == HASH:
            return self.hash
        return None if self.words is None else self.words.get(word)

    def graft(self, word: str) -> Node[T]:
        """Return a new node behind one word of a pattern."""
        node: Node[T] = Node()
        if word == STAR:
            self.star = node
        elif word == HASH:
            self.hash = node
        elif self.words is None:
            self.words = {word: node}
        else:
            self.words[word] = node
        return node

    def prune(self, word: str) -> None:
        """Detach the node behind one word of a pattern."""
        if word == STAR:
            self.star = None
        elif word == HASH:
            self.hash = None
        elif self.words is not None:
            del self.words[word]
            if not self.words:
                self.words = None

    def open_leaf(self) -> None:
        """Turn a leaf into a node that others can pass through, its pattern one place further down."""
        tail, self.tail = self.tail, None
        if tail:
            leaf = self.graft(tail[0])
            leaf.tail = tail[1:]
            leaf.target, self.target = self.target, None
            leaf.rest, self.rest = self.rest, None


class Trie(Generic[T]):
    """Maps distinct canonical patterns to targets, and a key to the targets of the patterns that match it.

    Matching walks all places that a key may have reached, word by word. A place is in that set at most once per word,
    so several `#` cost at most nodes x words, however many ways through them there are.

    Invariant: every node but the root leads to a target. `visited` counts the nodes looked at, by any verb.
    """

    __slots__ = ("_count", "_root", "_words", "visited")

    def __init__(self, dialect: TopicDialect = AMQP) -> None:
        self.visited = 0
        self._words = dialect.words
        self._root: Node[T] = Node()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def counts(self) -> Mapping[str, int]:
        """Return the number of nodes beside the root."""
        nodes = 0
        pending = [self._root]
        while pending:
            node = pending.pop()
            below = [child for child in (node.star, node.hash) if child is not None]
            below += (node.words or {}).values()
            nodes += len(below)
            pending += below
        return {"nodes": nodes}

    def add(self, pattern: Pattern, target: T) -> None:
        """Store the target of one pattern that is not there yet. Cost: the words of the pattern."""
        stem, open_end = _stem(pattern.words)
        node = self._root
        for position, word in enumerate(stem):
            self.visited += 1
            if node.tail is not None:
                node.open_leaf()
            child = node.child(word)
            if child is None:
                node = node.graft(word)
                if HASH not in stem[position + 1 :]:
                    node.tail = stem[position + 1 :]
                    break
            else:
                node = child
        else:
            if node.tail is not None:
                node.open_leaf()
        self.visited += 1
        if open_end:
            assert node.rest is None
            node.rest = target
        else:
            assert node.target is None
            node.target = target
        self._count += 1

    def find(self, pattern: Pattern) -> T | None:
        """Return the target of one pattern, or None if it is not there. Cost: the words of the pattern."""
        stem, open_end = _stem(pattern.words)
        path = self._path(stem)
        return None if path is None else _target(path, stem, open_end)

    def remove(self, pattern: Pattern) -> T:
        """Forget the pattern and the nodes that only it needed, and return its target. Cost: the pattern's words.

        Raises: KeyError if the pattern is not there.
        """
        stem, open_end = _stem(pattern.words)
        path = self._path(stem)
        target = None if path is None else _target(path, stem, open_end)
        if path is None or target is None:
            raise KeyError(pattern.text)
        self.visited += len(path)
        node = path.pop()
        if open_end:
            node.rest = None
        else:
            node.target = None
        self._count -= 1
        while path and node.is_empty():
            node = path.pop()
            node.prune(stem[len(path)])
        return target

    def _path(self, stem: Sequence[str]) -> list[Node[T]] | None:
        """Return the nodes from the root to where the words lead, or to the leaf that may hold the last of them."""
        node = self._root
        path = [node]
        for word in stem:
            if node.tail is not None:
                break
            child = node.child(word)
            if child is None:
                return None
            path.append(child)
            node = child
        return path

    def match(self, key: str) -> list[T]:
        """Return the targets of the patterns that match; behind a `#` one may come more than once.

        Cost: the places reached, summed over the words; at most nodes x words.
        """
        found: list[T] = []
        visited = 0
        words = self._words(key)
        left = len(words)
        active = [self._root]
        floating: dict[Node[T], None] = {}  # places behind a `#`: once reached they stay reached for all later words
        for word in (*words, END):
            reached: list[Node[T]] = []
            for node in active:  # grows on the way: a `#` may stand for no word, so what follows it is reached at once
                tail = node.tail
                if tail is not None:
                    target = node.target
                    if target is not None:
                        if len(tail) == left and _tail_matches(tail, words, left):
                            found.append(target)
                    elif len(tail) <= left and node.rest is not None and _tail_matches(tail, words, left):
                        found.append(node.rest)
                    continue
                if node.rest is not None:
                    found.append(node.rest)
                if node.hash is not None and node.hash not in floating:
                    floating[node.hash] = None
                    active.append(node.hash)
                if word is END and node.target is not None:
                    found.append(node.target)
                if node.words is not None:
                    child = node.words.get(word)
                    if child is not None:
                        reached.append(child)
                if node.star is not None:
                    reached.append(node.star)
            visited += len(active)
            if floating:
                reached.extend(floating)
            elif not reached:
                break
            active = reached
            left -= 1
        self.visited += visited
        return found


def _stem(words: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Return the words without a last `#`, and whether there was one."""
    if words and words[-1] == HASH:
        return tuple(words[:-1]), True
    return tuple(words), False


def _target(path: Sequence[Node[T]], stem: tuple[str, ...], open_end: bool) -> T | None:
    """Return the target at the end of a path, if what the path leaves of the stem is there."""
    node = path[-1]
    if (node.tail or ()) != stem[len(path) - 1 :]:
        return None
    return node.rest if open_end else node.target


def _tail_matches(tail: tuple[str, ...], words: Sequence[str], left: int) -> bool:
    """Return whether the words that are left begin with a tail no longer than they are."""
    position = len(words) - left
    for wanted in tail:
        if wanted != words[position] and wanted != STAR:
            return False
        position += 1
    return True
