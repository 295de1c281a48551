"""The way of one pattern through the trie."""

from __future__ import annotations

from collections.abc import Sequence
from sys import intern
from typing import TypeVar

from broker.routing.engines.trie_node import Gate, Node
from broker.routing.pattern import HASH, STAR

T = TypeVar("T")


class Way:
    """The steps from the root to where a pattern ends, and what holds its target there.

    One `#` leads to a gate; two lead through it to what may be anywhere. Behind the last gate a literal `end` is one
    entry of the gate, and any other is read backwards. A new node from `turn` steps on can be a leaf. `open_end` tells
    whether the pattern's last word is a `#`, which is no step.
    """

    __slots__ = ("end", "open_end", "steps", "turn")

    def __init__(self, words: tuple[str, ...]) -> None:
        self.end: tuple[str, ...] = ()
        self.turn = 0
        self.open_end = False
        steps: list[str] = []
        hashes = words.count(HASH) if HASH in words else 0
        for position, word in enumerate(words):
            if word != HASH:
                steps.append(intern(word))
                continue
            hashes -= 1
            if hashes:
                steps += (HASH, HASH)
            elif position == len(words) - 1:
                self.open_end = True
                break
            else:
                steps.append(HASH)
                behind = words[position + 1 :]
                if STAR in behind:
                    steps += [intern(word) for word in reversed(behind)]
                    self.turn = len(steps) - len(behind)
                else:
                    self.end = behind
                    self.turn = len(steps)
                break
            self.turn = len(steps)
        self.steps = tuple(steps)

    def target(self, path: Sequence[Node[T]]) -> T | None:
        """Return the target at the end of a path, if what the path leaves of the steps is there."""
        node = path[-1]
        if (node.tail or ()) != self.steps[len(path) - 1 :]:
            return None
        if self.end:
            return node.ends.get(".".join(self.end)) if isinstance(node, Gate) else None
        return node.rest if self.open_end else node.target

    def put(self, node: Node[T], target: T) -> None:
        """Store the target at the node where the steps end, or at a leaf that has the last of them."""
        if self.end:
            assert isinstance(node, Gate)
            node.add_end(self.end, target)
        elif self.open_end:
            assert node.rest is None
            node.rest = target
        else:
            assert node.target is None
            node.target = target

    def clear(self, node: Node[T]) -> None:
        """Forget the target at the node where the steps end, or at the leaf."""
        if self.end:
            assert isinstance(node, Gate)
            node.remove_end(self.end)
        elif self.open_end:
            node.rest = None
        else:
            node.target = None
