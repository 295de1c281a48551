"""Random changes and lookups of topic patterns in both dialects, with the reference's results."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from broker.routing.pattern import AMQP, DIALECTS, MQTT, Pattern, TopicDialect
from tests.property.topic_reference import matches

SEPARATORS = {"amqp": ".", "mqtt": "/"}
STARS = {"amqp": "*", "mqtt": "+"}
SIZES = (6, 10, 150, 8, 4)


@dataclass(frozen=True)
class Step:
    """The addition or removal of a pattern, or a lookup of a key that must match exactly the patterns `found`."""

    verb: str
    pattern: Pattern
    key: str = ""
    found: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Vocabulary:
    """The words of each level, the probabilities of wildcards, and the sizes of a script.

    The number of patterns moves from size to size, with one lookup per `per_match` changes.
    """

    levels: tuple[Sequence[str], ...]
    shortest: int
    stars: float
    hashes: float
    sizes: tuple[int, ...]
    per_match: int


VOCABULARIES = {
    # few words, each in many patterns; some are empty or look like wildcards
    "narrow": Vocabulary((("a", "b", "", "$x", "a#", "c"),) * 5, 0, 0.25, 0.15, sizes=(300, 30, 200), per_match=4),
    # many words, each in few patterns, and few wildcards, as in practice
    "wide": Vocabulary(
        tuple(tuple(f"{level}{word}" for word in range(size)) for level, size in zip("pqrst", SIZES, strict=True)),
        3, 0.15, 0.03, sizes=(1000, 50, 300), per_match=20,
    ),
}  # fmt: skip


@dataclass
class Author:
    """Generates a script; `bound` are the present patterns, `removed` the earlier ones."""

    dialect: TopicDialect
    vocabulary: Vocabulary
    source: random.Random
    steps: list[Step] = field(default_factory=list)
    bound: dict[str, Pattern] = field(default_factory=dict)
    removed: list[Pattern] = field(default_factory=list)

    def words(self) -> list[str]:
        """Return random words of the first levels."""
        vocabulary = self.vocabulary
        length = self.source.randint(vocabulary.shortest, len(vocabulary.levels))
        if self.dialect is MQTT:
            length = max(length, 1)
        return [self.source.choice(level) for level in vocabulary.levels[:length]]

    def new_pattern(self) -> Pattern:
        """Return a pattern, rarely one without a wildcard."""
        amqp = self.dialect is AMQP
        while True:
            words = self.words()
            if not amqp:
                words = [word.replace("#", "*") for word in words]
            for place in range(len(words)):
                chance = self.source.random()
                if chance < self.vocabulary.stars:
                    words[place] = STARS[self.dialect.name]
                elif chance < self.vocabulary.stars + self.vocabulary.hashes and (amqp or place == len(words) - 1):
                    words[place] = "#"
            text = SEPARATORS[self.dialect.name].join(words)
            if text or amqp:
                pattern = self.dialect.parse(text)
                if not pattern.literal or self.source.random() < 0.1:
                    return pattern

    def key(self) -> str:
        """Return a routing key that matches a present pattern, almost matches one, or is random."""
        separator = SEPARATORS[self.dialect.name]
        if not self.bound or self.source.random() < 0.2:
            words = self.words()
            if words and self.source.random() < 0.3:
                words[self.source.randrange(len(words))] = self.source.choice(["*", "#", "+", "/*"])
            return separator.join(words)
        text = self.source.choice(list(self.bound))
        words = []
        for word in text.split(separator) if text else []:
            if word == "#":
                words += self.words()[: self.source.randrange(4)]
            elif word == STARS[self.dialect.name]:
                words.append(self.source.choice(["a", "", "*", "#", *self.source.choice(self.vocabulary.levels)]))
            else:
                words.append(word)
        if words and self.source.random() < 0.2:
            words[self.source.randrange(len(words))] = "b"
        return separator.join(words)

    def add(self) -> None:
        """Add a pattern, often one that was present before."""
        again = self.removed and self.source.random() < 0.4
        pattern = self.source.choice(self.removed) if again else self.new_pattern()
        if pattern.text not in self.bound:
            self.bound[pattern.text] = pattern
            self.steps.append(Step("add", pattern))

    def remove(self) -> None:
        """Remove a random pattern."""
        if self.bound:
            pattern = self.bound.pop(self.source.choice(list(self.bound)))
            self.removed.append(pattern)
            self.steps.append(Step("remove", pattern))

    def match(self) -> None:
        """Look up one key."""
        key = self.key()
        words = self.dialect.words(key)
        found = frozenset(text for text, pattern in self.bound.items() if matches(pattern.words, words))
        self.steps.append(Step("match", NOTHING, key, found))

    def move(self, size: int) -> None:
        """Add or remove until this many patterns are present, with lookups in between."""
        while len(self.bound) != size:
            grows = len(self.bound) < size
            self.add() if grows == (self.source.random() < 0.85) else self.remove()
            if self.source.randrange(self.vocabulary.per_match) == 0:
                self.match()


NOTHING = AMQP.parse("")


@cache
def script(dialect: str, vocabulary: str, seed: int) -> list[Step]:
    """Return the steps from no pattern through the vocabulary's sizes to none."""
    author = Author(DIALECTS[dialect], VOCABULARIES[vocabulary], random.Random(seed))
    for size in (*author.vocabulary.sizes, 0):
        author.move(size)
    return author.steps
