"""A place in the trie of wildcard patterns."""

from __future__ import annotations

from typing import Generic, TypeVar

from broker.routing.pattern import HASH, STAR

T = TypeVar("T")


class Node(Generic[T]):
    """One place: what may follow, and the targets of the patterns that end here.

    `words` and `star` lead on by one word. `target` belongs to the pattern that ends here, `rest` to the one that ends
    here but for a last `#`. `gate` leads after a `#` that something follows. From a gate on, `words` and `star` read
    the key backwards from its end, for the patterns with no further `#`; the gate's own `gate` reads forwards from any
    word that follows, for those that have one.

    A leaf stands for a single pattern: `tail` holds the words that it has left, none of them a `#`, and only one of
    `target` and `rest` is there. Most patterns share but their first words, so leaves spare most of the nodes.

    A word leads to a target without a node while it is the last of a single pattern: a node more would be one more
    object that the caches of the processor have lost since the last key. So no target is a node.
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
        """Return whether nothing ends here or follows."""
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
        """Return the nodes that any step leads to; targets without a node are left out."""
        below = [node for node in (self.star, self.gate) if node is not None]
        if self.words is not None:
            below += [child for child in self.words.values() if isinstance(child, Node)]
        return below

    def graft(self, step: str, target: T | None = None) -> Node[T]:
        """Return a new node that one step leads to, and where a pattern with this target ends."""
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
        """Let one step lead to a single pattern, which has these words left: to its target if the step is all of it."""
        if tail or target is None or step == STAR:
            self.graft(step).become_leaf(tail, target, rest)
        elif self.words is None:
            self.words = {step: target}
        else:
            self.words[step] = target

    def prune(self, step: str) -> None:
        """Detach what one step leads to. Cost: one look-up; the dict of the words counts the children."""
        if step == STAR:
            self.star = None
        elif step == HASH:
            self.gate = None
        elif self.words is not None:
            del self.words[step]
            if not self.words:
                self.words = None

    def end_pattern(self, target: T | None) -> None:
        """Let a pattern with this target end here, or none."""
        self.target = target

    def end_open(self, target: T | None) -> None:
        """Let a pattern with this target end here but for a last `#`, or none."""
        self.rest = target

    def become_leaf(self, tail: tuple[str, ...], target: T | None, rest: T | None) -> None:
        """Stand for a single pattern, which has these words left."""
        self.tail = tail
        self.target = target
        self.rest = rest

    def open_leaf(self) -> None:
        """Turn a leaf into a node that others can pass through, its pattern one place further down."""
        tail, self.tail = self.tail, None
        if tail:
            self.graft_leaf(tail[0], tail[1:], self.target, self.rest)
            self.target = self.rest = None
