"""A fork of a bitmap trie: where one place of the key is tested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from broker.routing.engines.bitmap_bucket import BEYOND, Part, Solo
from broker.routing.pattern import STAR

T = TypeVar("T")

SPREAD: Final = 0.2
USELESS: Final = 0.75


class Fork(Part[T]):
    """Leads on by the word at one place: the patterns that have it there, and those that take any word.

    `short` leads to the patterns that end before the place. `tested` are the places tested here and above.
    """

    __slots__ = ("place", "short", "size", "tested", "wild", "words")

    def __init__(self, place: int, above: tuple[int, ...]) -> None:
        self.place: Final = place
        self.tested: Final = (*above, place)
        self.size = 0
        self.words: dict[str, Part[T]] = {}
        self.wild: Part[T] | None = None
        self.short: Part[T] | None = None

    def gather(self, words: list[str], length: int, found: list[T]) -> int:
        """Append the targets of the patterns below that match."""
        visited = 1
        part = self.words.get(words[self.place])
        if part is not None:
            visited += part.gather(words, length, found)
        part = self.wild
        if part is not None:
            visited += part.gather(words, length, found)
        part = self.short
        if part is not None and length <= self.place:
            visited += part.gather(words, length, found)
        return visited

    def part(self, word: str) -> Part[T] | None:
        """Return what is below for a word of a pattern, as `Solo.at` tells it."""
        if word == STAR:
            return self.wild
        if word == BEYOND:
            return self.short
        return self.words.get(word)

    def put(self, word: str, part: Part[T] | None) -> None:
        """Set what is below for a word of a pattern; None for nothing."""
        if word == STAR:
            self.wild = part
        elif word == BEYOND:
            self.short = part
        elif part is None:
            del self.words[word]
        else:
            self.words[word] = part

    def parts(self) -> list[Part[T]]:
        """Return all that is directly below."""
        below = list(self.words.values())
        if self.wild is not None:
            below.append(self.wild)
        if self.short is not None:
            below.append(self.short)
        return below


def best_place(solos: Sequence[Solo[T]], tested: Sequence[int], *, desperate: bool) -> int | None:
    """Return the place to test that leaves the fewest patterns, or None if none leaves much less than all.

    A key is led to the patterns that take any word there, a share `wild`, and to those with its word, a share `same`
    (the chance that two literals are the same). As both are split again and again, what counts is how many times that
    halves them: so shares count by a small power.
    """
    counts: dict[int, dict[str, int]] = {}
    shorter: dict[int, int] = {}
    for solo in solos:
        for place in solo.places():
            if place not in tested:
                words = counts.setdefault(place, {})
                word = solo.words[place]
                words[word] = words.get(word, 0) + 1
        if solo.closed:
            shorter[solo.least] = shorter.get(solo.least, 0) + 1
    total = len(solos)
    best: int | None = None
    lowest = 0.0
    for place, words in counts.items():
        literals = sum(words.values())
        ended = 0
        for least, count in shorter.items():
            if least <= place:
                ended += count
        wild = (total - literals - ended + 0.5) / (total + 1)
        pairs = sum([count * (count - 1) for count in words.values()])
        same = (pairs + 1) / (literals * (literals - 1) + 2) * literals / total
        if wild + same > USELESS and not (desperate and max(words.values()) < total):
            continue
        score = wild**SPREAD + same**SPREAD
        if best is None or score < lowest:
            best = place
            lowest = score
    return best
