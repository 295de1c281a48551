"""The patterns with several `#` while they are few, each found by two of its words."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from broker.routing.engines.pairwise import words_match
from broker.routing.pattern import HASH, STAR, Pattern

T = TypeVar("T")

PATTERNS_MOST: Final = 4096
PATTERNS_OF_WORD_MOST: Final = 32
"""Patterns with one word after the first `#`: a key with this word is compared with all of them at worst."""


class Middles(Generic[T]):
    """Compares a key with the patterns of which it has two words: the one after the first `#`, and the first other.

    In canonical form the word after the first `#` is not a wildcard. One pattern in a thousand with several `#` would
    otherwise cost every key as much as all others do. Of a million patterns, a key has the first of the two words of
    fifteen and both of fewer than two, most of which match.

    Shapes: `_patterns` leads from the word after the first `#` to the first other one, and from there to the patterns.
        A pattern that has no other has the same word twice.
    Invariant: `crowded` counts the patterns for which there was no room. While there are any, others must match.
    """

    __slots__ = ("_count", "_patterns", "crowded")

    def __init__(self) -> None:
        self._patterns: dict[str, dict[str, list[tuple[tuple[str, ...], T]]]] = {}
        self._count = 0
        self.crowded = 0

    def __len__(self) -> int:
        return self._count

    def add(self, pattern: Pattern, target: T) -> None:
        """Keep a pattern if there is room."""
        middle, other = _two_words(pattern)
        beside = self._patterns.get(middle, {})
        if self._count >= PATTERNS_MOST or sum(map(len, beside.values())) >= PATTERNS_OF_WORD_MOST:
            self.crowded += 1
            return
        self._count += 1
        self._patterns[middle] = beside
        beside[other] = [*beside.get(other, ()), (pattern.words, target)]

    def remove(self, pattern: Pattern) -> None:
        """Forget a pattern that was added."""
        middle, other = _two_words(pattern)
        beside = self._patterns.get(middle, {})
        listed = beside.get(other, [])
        left = [known for known in listed if known[0] != pattern.words]
        if len(left) == len(listed):
            self.crowded -= 1
            return
        self._count -= 1
        if left:
            beside[other] = left
        else:
            del beside[other]
        if not beside:
            del self._patterns[middle]
        if not self._count:
            self._patterns = {}  # an emptied dict keeps its size

    def collect(self, words: list[str], found: list[T]) -> int:
        """Append the targets of the patterns that match the words of a key, each once; return the patterns compared."""
        visited = 0
        for place, middle in enumerate(words):
            beside = self._patterns.get(middle)
            if beside is not None and words.index(middle) == place:
                visited += _compare(beside, words, found)
        return visited


def _compare(beside: dict[str, list[tuple[tuple[str, ...], T]]], words: list[str], found: list[T]) -> int:
    """Append the targets of the patterns of a middle that match, each once, and return the patterns compared."""
    visited = 0
    for place, other in enumerate(words):
        listed = beside.get(other)
        if listed is not None and words.index(other) == place:
            visited += len(listed)
            for wanted, target in listed:
                if words_match(wanted, words):
                    found.append(target)
    return visited


def _two_words(pattern: Pattern) -> tuple[str, str]:
    """Return the word after the first `#`, and the next that is not a wildcard (the first word again if none is)."""
    words = pattern.words
    place = words.index(HASH) + 1
    for word in words[:place] + words[place + 1 :]:
        if word not in (HASH, STAR):
            return words[place], word
    return words[place], words[place]
