"""A trie over the words of cached routing keys, which finds the keys that a pattern matches: an inverse topic index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from broker.routing.pattern import HASH, STAR

Node = dict[str, "Node | str"]
"""The children by word: a node, or the only key with this prefix."""

END: Final = "./"
"""The word under which a key that ends at a node is stored. No dialect has words with both characters."""

KEY_BYTES: Final = 150
NODE_BYTES: Final = 400
"""Estimates of the memory of a key, without its text, and of a node, usually too high."""


class KeyTrie:
    """A set of routing keys, which finds those that a pattern matches by visiting only the nodes that its words reach.

    Invariant: a key is stored where its words first differ from those of all others. So every node except the root
        leads to at least two keys, and the shape depends on the keys alone. `visited` counts the visits of `find`.
    """

    __slots__ = ("_count", "_nodes", "_root", "_words", "visited")

    def __init__(self, words: Callable[[str], list[str]]) -> None:
        """Shapes: `words` splits a routing key into words, as the dialect does."""
        self._words = words
        self._root: Node = {}
        self._count = 0
        self._nodes = 0
        self.visited = 0

    @property
    def used_bytes(self) -> int:
        """The estimated memory of keys and nodes, without the texts of the keys."""
        return self._count * KEY_BYTES + self._nodes * NODE_BYTES

    def counts(self) -> Mapping[str, int]:
        """Return the number of keys, and of nodes without the root."""
        return {"keys": self._count, "nodes": self._nodes}

    def clear(self) -> None:
        self._root = {}
        self._count = 0
        self._nodes = 0

    def add(self, key: str) -> None:
        """Add a new key. Cost: its words."""
        words = self._words(key)
        length = len(words)
        node = self._root
        depth = 0
        self._count += 1
        while True:
            word = words[depth] if depth < length else END
            found = node.get(word)
            if found is None:
                node[word] = key
                return
            if isinstance(found, str):
                break
            node = found
            depth += 1
        other = self._words(found)
        while True:  # replace the other key by nodes that lead to both
            below: Node = {}
            self._nodes += 1
            node[word] = below
            node = below
            depth += 1
            word = words[depth] if depth < length else END
            other_word = other[depth] if depth < len(other) else END
            if word != other_word:
                node[word] = key
                node[other_word] = found
                return

    def remove(self, key: str) -> None:
        """Remove a key and the nodes that no other key needs. Raises: KeyError if it is missing. Cost: its words."""
        words = self._words(key)
        length = len(words)
        node = self._root
        above: list[Node] = []
        while True:
            depth = len(above)
            word = words[depth] if depth < length else END
            found = node[word]
            if isinstance(found, str):
                break
            above.append(node)
            node = found
        if found != key:
            raise KeyError(key)
        del node[word]
        self._count -= 1
        while above and len(node) == 1:
            (left,) = node.values()
            if not isinstance(left, str):
                break  # the subtree has several keys
            node = above.pop()
            node[words[len(above)]] = left
            self._nodes -= 1
        if not self._count:
            self._root = {}

    def find(self, pattern: Sequence[str], visits_max: int) -> list[str] | None:
        """Return the keys that a pattern matches, or None if that takes more than about `visits_max` visits.

        Cost: a literal word visits one child, `*` all children, `#` the whole subtree.
        """
        length = len(pattern)
        stem = pattern.index(HASH) if HASH in pattern else length
        found: list[str] = []
        pending: list[tuple[Node | str, int]] = [(self._root, 0)]
        visits = 0
        while pending:
            node, depth = pending.pop()
            visits += 1
            if visits > visits_max:
                self.visited += visits
                return None
            if isinstance(node, str):
                if depth == length - 1 and depth == stem:
                    found.append(node)
                    continue
                steps = self._rest_matches(pattern, node, depth)
                visits += abs(steps)
                if steps > 0:
                    found.append(node)
                continue
            wide = depth != length and (depth >= stem or pattern[depth] == STAR)
            if wide and visits + len(pending) + len(node) > visits_max:
                self.visited += visits
                return None
            _follow(pattern, stem, node, depth, pending)
        self.visited += visits
        return found

    def search(self, pattern: Sequence[str]) -> Iterator[str | None]:
        """Yield the keys that a pattern matches, and None for each other visit.

        The trie may change in the meantime: keys that stay are found once; keys added or removed may be found or not.
        Cost: that of `find`.
        """
        stem = pattern.index(HASH) if HASH in pattern else len(pattern)
        pending: list[tuple[Node | str, int]] = [(self._root, 0)]
        while pending:
            node, depth = pending.pop()
            if isinstance(node, str):
                yield node if self._rest_matches(pattern, node, depth) > 0 else None
                continue
            _follow(pattern, stem, node, depth, pending)
            yield None

    def _rest_matches(self, pattern: Sequence[str], key: str, start: int) -> int:
        """Compare a key and a pattern from a word on; return the number of steps, negative for a mismatch.

        Each `#` matches as few words as possible; after a mismatch, only the last `#` must match one word more.
        """
        words = self._words(key)
        length = len(words)
        steps = 1
        at = place = start
        after_hash = mark = -1
        while at < length:
            steps += 1
            wanted = pattern[place] if place < len(pattern) else None
            if wanted == HASH:
                place += 1
                after_hash, mark = place, at
            elif wanted == STAR or wanted == words[at]:
                place += 1
                at += 1
            elif mark >= 0:
                mark += 1
                place, at = after_hash, mark
            else:
                return -steps
        while place < len(pattern) and pattern[place] == HASH:
            place += 1
        return steps if place == len(pattern) else -steps


def _follow(pattern: Sequence[str], stem: int, node: Node, depth: int, pending: list[tuple[Node | str, int]]) -> None:
    """Append the children of a node that a pattern reaches to `pending`; `stem` words precede its first `#`."""
    if depth < stem and pattern[depth] != STAR:
        child = node.get(pattern[depth])
        if child is not None:
            pending.append((child, depth + 1))
    elif depth == len(pattern):
        end = node.get(END)
        if end is not None:
            pending.append((end, depth))
    elif depth < stem:
        pending += [(child, depth + 1) for word, child in node.items() if word != END]
    else:
        pending += [(child, depth) for child in node.values()]
