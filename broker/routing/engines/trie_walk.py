"""The nodes of the trie, and the walk with a key: forwards, backwards after the last `#`, and between two `#`."""

from __future__ import annotations

from typing import Generic, TypeVar

from broker.routing.pattern import HASH, STAR

T = TypeVar("T")


class Node(Generic[T]):
    """A node: the next steps, and the targets of the patterns that end here.

    `words` and `star` lead on by one word. `target` belongs to the pattern that ends here, `rest` to the pattern that
    ends here with one more `#`. `gate` is the node after a `#` that more words follow. `words` and `star` of a
    gate match the key backwards from its end, for the patterns without a further `#`; the `gate` of a gate matches
    forwards from any remaining word, for the patterns with a further `#`.

    A leaf represents a single pattern: `tail` are its remaining words, which are not `#`, and only one of `target` and
    `rest` is set. Most patterns share only their first words, so leaves save most of the nodes.

    If a word is the last one of a single pattern, it leads directly to the target, which saves a node. So a target must
    not be a node.
    """

    __slots__ = ("gate", "rest", "star", "tail", "target", "words")

    def __init__(self, target: T | None = None) -> None:
        self.words: dict[str, Node[T] | T] | None = None
        self.star: Node[T] | None = None
        self.gate: Node[T] | None = None
        self.target = target
        self.rest: T | None = None
        self.tail: tuple[str, ...] | None = None

    def is_empty(self) -> bool:
        return (
            self.words is None and self.star is None and self.gate is None and self.target is None and self.rest is None
        )

    def child(self, step: str) -> Node[T] | T | None:
        """Return the node, or the target of the single pattern, that one step leads to."""
        if step == STAR:
            return self.star
        if step == HASH:
            return self.gate
        return None if self.words is None else self.words.get(step)

    def children(self) -> list[Node[T]]:
        """Return all child nodes, without targets that have no node."""
        below = [node for node in (self.star, self.gate) if node is not None]
        if self.words is not None:
            below += [child for child in self.words.values() if isinstance(child, Node)]
        return below

    def graft(self, step: str, target: T | None = None) -> Node[T]:
        """Add and return a new node after one step, where a pattern with this target ends."""
        node = Node(target)
        if step == STAR:
            self.star = node
        elif step == HASH:
            self.gate = node
        elif self.words is None:
            self.words = {step: node}
        else:
            self.words[step] = node
        return node

    def graft_leaf(self, step: str, tail: tuple[str, ...], target: T | None, rest: T | None) -> None:
        """Add a leaf after one step for a pattern with these remaining words, or the target itself if none remain."""
        if tail or target is None or step == STAR:
            self.graft(step).become_leaf(tail, target, rest)
        elif self.words is None:
            self.words = {step: target}
        else:
            self.words[step] = target

    def prune(self, step: str) -> None:
        """Remove the child after one step. Cost: one look-up."""
        if step == STAR:
            self.star = None
        elif step == HASH:
            self.gate = None
        elif self.words is not None:
            del self.words[step]
            if not self.words:
                self.words = None

    def end_pattern(self, target: T | None) -> None:
        """Set the target of the pattern that ends here, or None."""
        self.target = target

    def end_open(self, target: T | None) -> None:
        """Set the target of the pattern that ends here with one more `#`, or None."""
        self.rest = target

    def become_leaf(self, tail: tuple[str, ...], target: T | None, rest: T | None) -> None:
        """Represent a single pattern with these remaining words."""
        self.tail = tail
        self.target = target
        self.rest = rest

    def open_leaf(self) -> None:
        """Turn a leaf into an inner node; the remaining words, if any, move one node further down."""
        tail, self.tail = self.tail, None
        if tail:
            self.graft_leaf(tail[0], tail[1:], self.target, self.rest)
            self.target = self.rest = None


def walk(node: Node[T], words: list[str], place: int, floats: list[tuple[int, Node[T]]], found: list[T]) -> int:
    """Append to `found` the targets of patterns that continue from a node with the words from a position on, and return
    the number of nodes visited.

    Append to `floats` the nodes after a `#` that is not the last of its pattern, if the key has a word that may follow.
    """
    visited = 0
    length = len(words)
    while True:
        visited += 1
        tail = node.tail
        if tail is not None:
            match_leaf(node, tail, words, length - place, found)
            return visited
        target = node.rest
        if target is not None:
            found.append(target)
        if place == length:
            target = node.target
            if target is not None:
                found.append(target)
            return visited
        gate = node.gate
        if gate is not None:
            visited += 1 + enter(gate, words, length - place, found)
            floating = gate.gate
            if floating is not None and floating.words is not None and not floating.words.keys().isdisjoint(words):
                floats.append((length - place, floating))
        table = node.words
        child = None if table is None else table.get(words[place])
        star = node.star
        place += 1
        if child is not None:
            if isinstance(child, Node):
                if star is not None:
                    visited += walk(star, words, place, floats, found)  # depth: words of the key
                node = child
                continue
            if place == length:
                found.append(child)
        if star is None:
            return visited
        node = star


def enter(gate: Node[T], words: list[str], left: int, found: list[T]) -> int:
    """Find the patterns after a gate whose last words end the key, and return the number of nodes visited.

    Shapes: `left` words of the key remain at the gate, at least one.
    """
    visited = 0
    table = gate.words
    if table is not None:
        child = table.get(words[-1])
        if child is not None:
            if isinstance(child, Node):
                visited = walk_back(child, words, left - 1, len(words) - 2, found)
            else:
                found.append(child)
    star = gate.star
    if star is not None:
        visited += walk_back(star, words, left - 1, len(words) - 2, found)
    return visited


def walk_back(node: Node[T], words: list[str], left: int, place: int, found: list[T]) -> int:
    """Find the patterns that continue backwards from a node and a position, and return the number of nodes visited.

    Shapes: `left` words of the key remain.
    """
    visited = 0
    while True:
        visited += 1
        target = node.target
        if target is not None:
            tail = node.tail
            if not tail or (len(tail) <= left and _ends_with(words, place, tail)):
                found.append(target)
        if not left:
            return visited
        table = node.words
        child = None if table is None else table.get(words[place])
        star = node.star
        left -= 1
        place -= 1
        if child is not None:
            if isinstance(child, Node):
                if star is not None:
                    visited += walk_back(star, words, left, place, found)  # depth: words of the key
                node = child
                continue
            found.append(child)
        if star is None:
            return visited
        node = star


def match_leaf(node: Node[T], tail: tuple[str, ...], words: list[str], left: int, found: list[T]) -> None:
    """Append the target of a leaf if its tail matches the remaining words, or, before a `#`, the first of them."""
    if len(tail) > left or (node.rest is None and len(tail) < left):
        return
    position = len(words) - left
    for wanted in tail:
        if wanted != words[position] and wanted != STAR:
            return
        position += 1
    if node.target is not None:
        found.append(node.target)
    elif node.rest is not None:
        found.append(node.rest)


def _ends_with(words: list[str], position: int, tail: tuple[str, ...]) -> bool:
    """Return whether the words up to a position end with a tail in reverse order."""
    for wanted in tail:
        if wanted != words[position] and wanted != STAR:
            return False
        position -= 1
    return True


def match_floating(floats: list[tuple[int, Node[T]]], words: list[str], found: list[T]) -> int:
    """Find the patterns with several `#` and words between them, and return the number of nodes visited.

    Shapes: `floats` contains, for each first `#` reached, the number of words that remained there, descending, and the
        node after it.
    Invariant: a later `#` is entered only where it is first reached: entered later, it would match nothing more.
    """
    visited = 0
    begun = 0
    left = floats[0][0]
    floating: list[Node[T]] = []
    opened: set[Node[T]] = set()
    active: list[Node[T]] = []
    while left:
        while begun < len(floats) and floats[begun][0] == left:
            floating.append(floats[begun][1])
            begun += 1
        visited += len(active) + _open(active, floating, opened, words, left, found) + len(floating)
        word = words[len(words) - left]
        reached: list[Node[T]] = []
        for node in active:
            star = node.star
            if star is not None:
                reached.append(star)
        for node in (*active, *floating):
            table = node.words
            if table is not None:
                child = table.get(word)
                if isinstance(child, Node):  # another `#` follows
                    reached.append(child)
        active = reached
        left -= 1
    return visited + len(active) + _open(active, floating, opened, words, 0, found)


def _open(
    active: list[Node[T]],
    floating: list[Node[T]],
    opened: set[Node[T]],
    words: list[str],
    left: int,
    found: list[T],
) -> int:
    """Find the patterns that end with a `#` at the active nodes, and enter the gates after a `#`; skip opened nodes.
    Return the number of nodes visited besides the active ones.
    """
    visited = 0
    for node in active:
        if node in opened:
            continue
        tail = node.tail
        if tail is not None:
            count = len(found)
            match_leaf(node, tail, words, left, found)
            if len(found) > count:
                opened.add(node)
        elif node.rest is not None or node.gate is not None:
            opened.add(node)
            if node.rest is not None:
                found.append(node.rest)
            gate = node.gate
            if gate is not None and left:
                visited += 1 + enter(gate, words, left, found)
                if gate.gate is not None:
                    floating.append(gate.gate)
    return visited
