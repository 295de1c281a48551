"""A place in the trie of patterns that are searched for covering."""

from __future__ import annotations

from broker.routing.pattern import HASH, STAR, Pattern


class Place:
    """One node of the trie: the pattern that ends here, and its children.

    What follows is another place, or, where only one pattern goes on, that pattern itself.
    """

    __slots__ = ("hash", "pattern", "star", "words")

    def __init__(self) -> None:
        self.words: dict[str, Place | Pattern] | None = None
        self.star: Place | Pattern | None = None
        self.hash: Place | Pattern | None = None
        self.pattern: Pattern | None = None

    def child(self, word: str) -> Place | Pattern | None:
        """Return what follows behind one word of a pattern."""
        if word == STAR:
            return self.star
        if word == HASH:
            return self.hash
        return None if self.words is None else self.words.get(word)

    def attach(self, word: str, child: Place | Pattern) -> None:
        """Put a place or a pattern behind one word."""
        if word == STAR:
            self.star = child
        elif word == HASH:
            self.hash = child
        elif self.words is None:
            self.words = {word: child}
        else:
            self.words[word] = child

    def detach(self, word: str) -> None:
        """Leave nothing behind one word."""
        if word == STAR:
            self.star = None
        elif word == HASH:
            self.hash = None
        elif self.words is not None:
            del self.words[word]
            if not self.words:
                self.words = None

    def hold(self, pattern: Pattern, depth: int) -> None:
        """Let a pattern whose first `depth` words lead here end here, or go on as the only one behind its next word."""
        if len(pattern.words) == depth:
            self.pattern = pattern
        else:
            self.attach(pattern.words[depth], pattern)

    def release(self) -> None:
        """Let no pattern end here."""
        self.pattern = None

    def sole(self) -> Pattern | None:
        """Return the pattern that ends here or goes on from here, if it is the only one and no place follows."""
        children = [child for child in (self.pattern, self.star, self.hash) if child is not None]
        if self.words is not None:
            if len(self.words) > 1:
                return None
            children += self.words.values()
        if len(children) != 1:
            return None
        child = children[0]
        return child if isinstance(child, Pattern) else None
