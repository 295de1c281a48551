"""A trie over the words of wildcard patterns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from broker.routing.dialect import AMQP, TopicDialect
from broker.routing.engines.trie_node import Gate, Node
from broker.routing.engines.trie_way import Way
from broker.routing.pattern import STAR, Pattern

T = TypeVar("T")


class Trie(Generic[T]):
    """Maps distinct canonical patterns to targets, and a key to the targets of the patterns that match it.

    Matching walks all places that a key may have reached, word by word. What follows the last `#` of a pattern has to
    be the end of the key, so it is read once, backwards, instead of being tried at each later word. Only what stands
    between two `#` may be anywhere: a place there is reached at most once per word, so several `#` cost at most
    nodes x words, however many ways through them there are.

    Invariant: every node but the root leads to a target. `visited` counts the nodes looked at, by any verb but find.
    Source: "Very fast and scalable topic routing", part 1 (RabbitMQ, 2010), whose trie tries what follows a `#` with
        every tail of the key.
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
        """Return the number of nodes beside the root. Cost: all of them."""
        pending = self._root.children()
        nodes = 0
        while pending:
            nodes += 1
            pending += pending.pop().children()
        return {"nodes": nodes}

    def add(self, pattern: Pattern, target: T) -> None:
        """Store the target of one pattern that is not there yet. Cost: the words of the pattern."""
        way = Way(pattern.words)
        steps = way.steps
        node = self._root
        for position, step in enumerate(steps):
            self.visited += 1
            if node.tail is not None:
                node.open_leaf()
            child = node.child(step)
            if child is None:
                node = node.graft(step)
                if position >= way.turn:
                    node.tail = steps[position + 1 :]
                    break
            else:
                node = child
        else:
            if node.tail is not None:
                node.open_leaf()
        self.visited += 1
        way.put(node, target)
        self._count += 1

    def find(self, pattern: Pattern) -> T | None:
        """Return the target of one pattern, or None if it is not there. Cost: the words of the pattern."""
        way = Way(pattern.words)
        path = self._path(way.steps)
        return None if path is None else way.target(path)

    def remove(self, pattern: Pattern) -> T:
        """Forget the pattern and the nodes that only it needed, and return its target. Cost: the pattern's words.

        Raises: KeyError if the pattern is not there.
        """
        way = Way(pattern.words)
        path = self._path(way.steps)
        target = None if path is None else way.target(path)
        if path is None or target is None:
            raise KeyError(pattern.text)
        self.visited += len(path)
        node = path.pop()
        way.clear(node)
        self._count -= 1
        while path and node.is_empty():
            node = path.pop()
            node.prune(way.steps[len(path)])
        return target

    def _path(self, steps: Sequence[str]) -> list[Node[T]] | None:
        """Return the nodes from the root to where the steps lead, or to the leaf that may hold the last of them."""
        node = self._root
        path = [node]
        for step in steps:
            if node.tail is not None:
                break
            child = node.child(step)
            if child is None:
                return None
            path.append(child)
            node = child
        return path

    def match(self, key: str) -> list[T]:
        """Return the targets of the patterns that match, each once.

        Cost: the places reached, summed over the words; at most nodes x words.
        """
        found: list[T] = []
        words = self._words(key)
        left = len(words)
        visited = 1
        active = [self._root]
        gates: list[Gate[T]] = []
        ends: list[str] = []
        floats: list[tuple[int, Node[T]]] = []
        for word in words:
            reached: list[Node[T]] = []
            for node in active:
                tail = node.tail
                if tail is not None:
                    _match_leaf(node, tail, words, left, found)
                    continue
                target = node.rest
                if target is not None:
                    found.append(target)
                table = node.words
                if table is not None:
                    child = table.get(word)
                    if child is not None:
                        reached.append(child)
                child = node.star
                if child is not None:
                    reached.append(child)
                gate = node.gate
                if gate is not None:
                    gates.append(gate)
                    child = gate.gate
                    if child is not None:
                        floats.append((left, child))
            if gates:
                visited += _match_gates(gates, ends, words, left, found)
                gates = []
            active = reached
            if not reached:
                break
            visited += len(reached)
            left -= 1
        if active:
            _match_end(active, found)
        if floats:
            visited += _match_floating(floats, ends, words, found)
        self.visited += visited
        return found


def _match_end(active: list[Node[T]], found: list[T]) -> None:
    """Find the patterns that end where the key does."""
    for node in active:
        if not node.tail:
            target = node.target
            if target is not None:
                found.append(target)
            target = node.rest
            if target is not None:
                found.append(target)


def _match_leaf(node: Node[T], tail: tuple[str, ...], words: list[str], left: int, found: list[T]) -> None:
    """Find the pattern of a leaf, if the words that are left are, or begin with, its tail."""
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


def _match_gates(gates: list[Gate[T]], ends: list[str], words: list[str], left: int, found: list[T]) -> int:
    """Find the patterns behind some gates whose last `#` is there, and return the number of look-ups and nodes.

    Shapes: `ends` has the last word of the key, its last two words, and so on, as far as anybody asked for them.
    """
    visited = len(gates)
    backwards: list[Node[T]] = []
    for gate in gates:
        length = 0
        for count in gate.lengths:
            if length == left:
                break
            if count:
                while len(ends) <= length:
                    ends.append(f"{words[-1 - len(ends)]}.{ends[-1]}" if ends else words[-1])
                visited += 1
                target = gate.ends.get(ends[length])
                if target is not None:
                    found.append(target)
            length += 1
        if gate.words is not None or gate.star is not None:
            backwards.append(gate)
    if backwards:
        visited += _match_backwards(backwards, words, left, found)
    return visited


def _match_backwards(active: list[Node[T]], words: list[str], left: int, found: list[T]) -> int:
    """Find the patterns behind some gates whose steps are the end of the key, and return the number of nodes visited.

    Shapes: as many of the words as are left, the last of all words first.
    """
    visited = 0
    position = len(words) - 1
    while active:
        visited += len(active)
        reached: list[Node[T]] = []
        for node in active:
            target = node.target
            if target is not None:
                tail = node.tail
                if not tail or (len(tail) <= left and _ends_with(words, position, tail)):
                    found.append(target)
            if left:
                table = node.words
                if table is not None:
                    child = table.get(words[position])
                    if child is not None:
                        reached.append(child)
                child = node.star
                if child is not None:
                    reached.append(child)
        active = reached
        position -= 1
        left -= 1
    return visited


def _ends_with(words: list[str], position: int, tail: tuple[str, ...]) -> bool:
    """Return whether the words up to a position end with a tail that was written backwards."""
    for wanted in tail:
        if wanted != words[position] and wanted != STAR:
            return False
        position -= 1
    return True


def _match_floating(floats: list[tuple[int, Node[T]]], ends: list[str], words: list[str], found: list[T]) -> int:
    """Find the patterns with more than one `#` and a word between them, and return the number of nodes visited.

    Shapes: the numbers of words that were left where the first `#` was reached, falling, and what follows it.
    Invariant: what stands behind a later `#` is opened where it is reached first, as more words never match less.
    """
    visited = len(floats)
    floats = [begin for begin in floats if begin[1].words is not None and not begin[1].words.keys().isdisjoint(words)]
    begun = 0
    left = floats[0][0] if floats else 0
    floating: list[Node[T]] = []
    opened: set[Node[T]] = set()
    active: list[Node[T]] = []
    while left:
        while begun < len(floats) and floats[begun][0] == left:
            floating.append(floats[begun][1])
            begun += 1
        _open(active, floating, opened, ends, words, left, found)
        visited += len(active) + len(floating)
        word = words[len(words) - left]
        reached: list[Node[T]] = []
        for node in active:
            child = node.star
            if child is not None:
                reached.append(child)
        for node in (*active, *floating):
            table = node.words
            if table is not None:
                child = table.get(word)
                if child is not None:
                    reached.append(child)
        active = reached
        left -= 1
    _open(active, floating, opened, ends, words, 0, found)
    return visited + len(active)


def _open(
    active: list[Node[T]],
    floating: list[Node[T]],
    opened: set[Node[T]],
    ends: list[str],
    words: list[str],
    left: int,
    found: list[T],
) -> None:
    """Find what a `#` ends, and enter what it leads to, at the places between two `#` that are reached first now."""
    for node in active:
        if node in opened:
            continue
        tail = node.tail
        if tail is not None:
            count = len(found)
            _match_leaf(node, tail, words, left, found)
            if len(found) > count:
                opened.add(node)
        elif node.rest is not None or node.gate is not None:
            opened.add(node)
            if node.rest is not None:
                found.append(node.rest)
            gate = node.gate
            if gate is not None:
                _match_gates([gate], ends, words, left, found)
                if gate.gate is not None:
                    floating.append(gate.gate)
