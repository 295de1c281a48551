"""The patterns as a nondeterministic automaton: a trie in which a `#` is a place that any word leads back to."""

from __future__ import annotations

from typing import Generic, TypeVar

from broker.routing.pattern import HASH, STAR, Pattern

T = TypeVar("T")


class NfaPlace(Generic[T]):
    """One place of the automaton: where a word leads from it, and the target of the pattern that ends here.

    `hash` is reached together with its parent, by no word at all, and stays reached, whatever word follows.
    """

    __slots__ = ("hash", "star", "stays", "target", "words")

    def __init__(self, *, stays: bool) -> None:
        self.stays = stays
        self.words: dict[str, NfaPlace[T]] | None = None
        self.star: NfaPlace[T] | None = None
        self.hash: NfaPlace[T] | None = None
        self.target: T | None = None

    def child(self, word: str) -> NfaPlace[T] | None:
        """Return the place after one word of a pattern."""
        if word == STAR:
            return self.star
        if word == HASH:
            return self.hash
        return None if self.words is None else self.words.get(word)

    def graft(self, word: str) -> NfaPlace[T]:
        """Return a new place after one word of a pattern."""
        place: NfaPlace[T] = NfaPlace(stays=word == HASH)
        if word == STAR:
            self.star = place
        elif word == HASH:
            self.hash = place
        elif self.words is None:
            self.words = {word: place}
        else:
            self.words[word] = place
        return place

    def prune(self, word: str) -> None:
        """Detach the place after one word of a pattern. Cost: one look-up; the dict of the words counts the places."""
        if word == STAR:
            self.star = None
        elif word == HASH:
            self.hash = None
        elif self.words is not None:
            del self.words[word]
            if not self.words:
                self.words = None

    def end_pattern(self, target: T | None) -> None:
        """Set the target of the pattern that ends here; None clears it."""
        self.target = target

    def is_empty(self) -> bool:
        """Return whether nothing ends here or follows."""
        return self.target is None and self.words is None and self.star is None and self.hash is None


class Nfa(Generic[T]):
    """Holds distinct canonical patterns, each a path of places from the start to its target.

    Cost: what its verbs cost is the words of the pattern. Invariant: every place but the start leads to a target.
    """

    __slots__ = ("patterns", "places", "start")

    def __init__(self) -> None:
        self.start: NfaPlace[T] = NfaPlace(stays=False)
        self.places = 0
        self.patterns = 0

    def add(self, pattern: Pattern, target: T) -> T | None:
        """Store the target of one pattern, or return the one that it has already."""
        place = self.start
        for word in pattern.words:
            child = place.child(word)
            if child is None:
                child = place.graft(word)
                self.places += 1
            place = child
        known = place.target
        if known is None:
            place.end_pattern(target)
            self.patterns += 1
        return known

    def find(self, pattern: Pattern) -> T | None:
        """Return the target of one pattern, or None if it is not there."""
        path = self._path(pattern)
        return path[-1].target if path else None

    def remove(self, pattern: Pattern) -> T:
        """Forget the pattern and the places that only it needed, and return its target.

        Raises: KeyError if the pattern is not there.
        """
        path = self._path(pattern)
        target = path[-1].target if path else None
        if target is None:
            raise KeyError(pattern.text)
        place = path.pop()
        place.end_pattern(None)
        self.patterns -= 1
        while path and place.is_empty():
            place = path.pop()
            place.prune(pattern.words[len(path)])
            self.places -= 1
        return target

    def _path(self, pattern: Pattern) -> list[NfaPlace[T]]:
        """Return the places from the start to the end of a pattern; none if they are not all there."""
        place = self.start
        path = [place]
        for word in pattern.words:
            child = place.child(word)
            if child is None:
                return []
            path.append(child)
            place = child
        return path
