"""The patterns with several `#` while they are few, each found by its word behind the first `#`."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from broker.routing.engines.pairwise import words_match
from broker.routing.pattern import HASH, STAR, Pattern

T = TypeVar("T")

PATTERNS_MOST: Final = 4096
PATTERNS_OF_WORD_MOST: Final = 32
"""Patterns with one word behind the first `#`: all are compared with a key that has this word."""


class Middles(Generic[T]):
    """Compares a key with the patterns whose word behind the first `#` is one of its own.

    In canonical form that word is no wildcard. One pattern in a thousand with several `#` would otherwise cost every
    key as much as all others do.

    Invariant: `crowded` counts the patterns for which there was no room. While there are any, others must match.
    """

    __slots__ = ("_count", "_patterns", "crowded")

    def __init__(self) -> None:
        self._patterns: dict[str, list[tuple[tuple[str, ...], T]]] = {}
        self._count = 0
        self.crowded = 0

    def __len__(self) -> int:
        return self._count

    def add(self, pattern: Pattern, target: T) -> None:
        """Keep a pattern if there is room."""
        word = _middle(pattern)
        listed = self._patterns.get(word)
        if self._count >= PATTERNS_MOST or (listed is not None and len(listed) >= PATTERNS_OF_WORD_MOST):
            self.crowded += 1
            return
        self._count += 1
        if listed is None:
            self._patterns[word] = [(pattern.words, target)]
        else:
            listed.append((pattern.words, target))

    def remove(self, pattern: Pattern) -> None:
        """Forget a pattern that was added."""
        word = _middle(pattern)
        listed = self._patterns.get(word, [])
        left = [known for known in listed if known[0] != pattern.words]
        if len(left) == len(listed):
            self.crowded -= 1
            return
        self._count -= 1
        if left:
            self._patterns[word] = left
        else:
            del self._patterns[word]
        if not self._count:
            self._patterns = {}  # an emptied dict keeps its size

    def collect(self, words: list[str], found: list[T]) -> int:
        """Append the targets of the patterns that match the words of a key, each once; return the patterns compared."""
        visited = 0
        place = -1
        for word in words:
            place += 1
            listed = self._patterns.get(word)
            if listed is not None and words.index(word) == place:
                visited += len(listed)
                for wanted, target in listed:
                    if _may_match(wanted, words) and words_match(wanted, words):
                        found.append(target)
        return visited


def _may_match(wanted: tuple[str, ...], words: list[str]) -> bool:
    """Return whether the first and the last word fit, which is quick to see."""
    first, last = wanted[0], wanted[-1]
    return first in (words[0], HASH, STAR) and last in (words[-1], HASH, STAR)


def _middle(pattern: Pattern) -> str:
    words = pattern.words
    return words[words.index(HASH) + 1]
