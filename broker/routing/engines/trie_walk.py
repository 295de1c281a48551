"""How a key walks through the trie: what its words find at leaves, at its end, behind a `#`, and between two."""

from __future__ import annotations

from typing import TypeVar

from broker.routing.engines.trie_node import Node
from broker.routing.pattern import STAR

T = TypeVar("T")


def match_end(active: list[Node[T]], found: list[T]) -> None:
    """Find the patterns that end where the key does."""
    for node in active:
        if not node.tail:
            target = node.target
            if target is not None:
                found.append(target)
            target = node.rest
            if target is not None:
                found.append(target)


def match_leaf(node: Node[T], tail: tuple[str, ...], words: list[str], left: int, found: list[T]) -> None:
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


def turn_back(gate: Node[T], last: str, behind: list[Node[T]]) -> None:
    """Add the nodes that the last word of the key leads to from a gate."""
    table = gate.words
    if table is not None:
        child = table.get(last)
        if child is not None:
            behind.append(child)
    child = gate.star
    if child is not None:
        behind.append(child)


def match_backwards(active: list[Node[T]], words: list[str], left: int, found: list[T]) -> int:
    """Find the patterns whose end the key has, behind some gates, and return the number of nodes visited.

    Shapes: nodes behind the last word of the key; as many words as are left before it lead on.
    """
    visited = 0
    position = len(words) - 2
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


def match_floating(floats: list[tuple[int, Node[T]]], words: list[str], found: list[T]) -> int:
    """Find the patterns with more than one `#` and a word between them, and return the number of nodes visited.

    Shapes: the numbers of words that were left where the first `#` was reached, falling, and what follows it.
    Invariant: what stands behind a later `#` is opened where it is reached first, as more words never match less.
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
    return visited + len(active) + _open(active, floating, opened, words, 0, found)


def _open(
    active: list[Node[T]],
    floating: list[Node[T]],
    opened: set[Node[T]],
    words: list[str],
    left: int,
    found: list[T],
) -> int:
    """Find what a `#` ends, and enter what it leads to, at the places between two `#` that are reached first now, and
    return the number of nodes visited beside the active ones.
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
                behind: list[Node[T]] = []
                turn_back(gate, words[-1], behind)
                visited += 1 + match_backwards(behind, words, left - 1, found)
                if gate.gate is not None:
                    floating.append(gate.gate)
    return visited
