"""Covering of patterns: a pattern covers another if it matches every key that the other one matches."""

from __future__ import annotations

from broker.routing.pattern import HASH, STAR, Pattern


class CoverAutomaton:
    """Reads the words of patterns and tells whether one pattern covers them.

    A set of states is an integer: bit j stands for the first j words of the covering pattern being used up. What a
    pattern that is read may stand for is read at once. Its `*` is a word that nobody has named, which only a `*` or
    a `#` can take. Its `#` is any number of such words, none among them, so only a run of wildcards with a `#` can
    take it, and the stars which that run still owes it owes afterwards. As in canonical form the stars of a run come
    first, a state says how many those are.

    Invariant: no answer is wrong, in either direction. A state kept over a `#` leads on for any number of words;
    and where one number of words is too many for every run of stars, only a `#` takes them. `steps` counts the words
    read.
    Cost: one step costs a few operations on integers of as many bits as the covering pattern has words.
    Source: containment of linear tree patterns, Miklau and Suciu, "Containment and Equivalence for a Fragment of
    XPath", 2004.
    """

    __slots__ = ("_end", "_ever", "_gaps", "_hashes", "_stars", "literals", "start", "steps")

    def __init__(self, wider: Pattern) -> None:
        literals: dict[str, int] = {}
        stars = hashes = gaps = run = 0
        bit = 1
        for word in wider.words:
            if word == STAR:
                stars |= bit
                run |= bit
            elif word == HASH:
                hashes |= bit
                gaps |= run | bit
            else:
                literals[word] = literals.get(word, 0) | bit
                run = 0
            bit <<= 1
        self.literals = literals
        self.steps = 0
        self._stars = stars
        self._hashes = hashes
        self._gaps = gaps
        self._end = bit
        self._ever = hashes & (bit >> 1)
        self.start: int = 1 | (hashes & 1) << 1

    def step(self, states: int, word: str) -> int:
        """Return the states after one more word of a pattern; 0 if the pattern is not covered."""
        self.steps += 1
        if word == HASH:
            kept = states & self._gaps
        elif word == STAR:
            kept = (states & self._stars) << 1 | (states & self._hashes)
        else:
            kept = (states & (self._stars | self.literals.get(word, 0))) << 1 | (states & self._hashes)
        return kept | (kept & self._hashes) << 1

    def takes_any_word(self, states: int) -> bool:
        """Return whether a word that the covering pattern does not name leads on from here."""
        return states & (self._stars | self._hashes) != 0

    def covers(self, narrower: Pattern, position: int = 0, states: int = 0) -> bool:
        """Return whether the pattern is covered, read from a position on with the states reached there."""
        if position == 0:
            states = self.start
        words = narrower.words
        for place in range(position, len(words)):
            if states & self._ever:
                return True
            states = self.step(states, words[place])
            if states == 0:
                return False
        return states & self._end != 0


def covers(wider: Pattern, narrower: Pattern) -> bool:
    """Return whether every key that the narrower pattern matches is matched by the wider one; equal ones cover.

    Cost: the words of both; for each word of the narrower one a few operations on integers of len(wider) bits.
    """
    return CoverAutomaton(wider).covers(narrower)


def narrowness(pattern: Pattern) -> tuple[int, int, int]:
    """Return a sort key by which a wider pattern comes before all patterns that it covers.

    The wider of two patterns matches a shorter key, or else, both being as long without their `#`, it names fewer
    words, or else has a `#` where the narrower one has none.
    """
    hashes = stars = 0
    for word in pattern.words:
        if word == HASH:
            hashes += 1
        elif word == STAR:
            stars += 1
    words = len(pattern.words) - hashes
    return words, words - stars, -hashes
