"""Generates patterns and routing keys: five levels of words, stars and hashes in the shares of RabbitMQ's article.

The article does not publish its words, so these replace them: few regions, some sites, many devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import prod
from random import Random

from broker.routing.pattern import HASH, STAR, parse_pattern

VOCABULARY = (20, 50, 2000, 30, 5)
WORDS = tuple([f"w{level}_{number}" for number in range(size)] for level, size in enumerate(VOCABULARY))
STARS, HASHES = 0.10, 0.01
SHORTEST = 3
NARROW_CHANCE = 2e-7
"""Narrow patterns exclude those that a key of five words matches more often than this."""


def patterns(count: int, seed: int = 1) -> list[str]:
    """Return distinct wildcard patterns of three to five words, in random order; no two match the same keys."""
    return list(islice(_distinct(_draw_patterns(Random(seed), SHORTEST)), count))


def narrow_patterns(count: int, seed: int = 2) -> list[str]:
    """Return distinct wildcard patterns of five words that few keys match: of 100,000 about one in a hundred."""
    drawn = _draw_patterns(Random(seed), len(VOCABULARY))
    return list(islice(_distinct(text for text in drawn if chance(text) <= NARROW_CHANCE), count))


def keys(count: int, seed: int = 3, shortest: int = SHORTEST) -> list[str]:
    """Return distinct routing keys of at most five words, in random order."""
    return list(islice(_once(_draw_keys(Random(seed), shortest)), count))


def meeting_key(pattern: str, random: Random) -> str:
    """Return a key of five words or more that matches a pattern."""
    words = [random.choice(WORDS[level]) if word in (STAR, HASH) else word for level, word in _levels(pattern)]
    return ".".join(words)


def chance(pattern: str) -> float:
    """Return the probability that a key of five words matches a pattern of five: every literal word must be drawn."""
    return 1 / prod(VOCABULARY[level] for level, word in _levels(pattern) if word not in (STAR, HASH))


def _levels(pattern: str) -> Iterator[tuple[int, str]]:
    for level, word in enumerate(pattern.split(".")):
        yield min(level, len(VOCABULARY) - 1), word


def _draw_patterns(random: Random, shortest: int) -> Iterator[str]:
    """Yield an endless sequence of patterns with at least one wildcard."""
    draw, levels = random.random, len(VOCABULARY)
    while True:
        words: list[str] = []
        wild = False
        for level in range(shortest + int(draw() * (levels - shortest + 1))):
            lot = draw()
            if lot < STARS + HASHES:
                wild = True
                words.append(STAR if lot < STARS else HASH)
            else:
                words.append(WORDS[level][int(draw() * VOCABULARY[level])])
        if wild:
            yield ".".join(words)


def _draw_keys(random: Random, shortest: int) -> Iterator[str]:
    draw, levels = random.random, len(VOCABULARY)
    while True:
        length = shortest + int(draw() * (levels - shortest + 1))
        yield ".".join([row[int(draw() * len(row))] for row in WORDS[:length]])


def _distinct(texts: Iterator[str]) -> Iterator[str]:
    """Yield each pattern once, by its canonical text."""
    return _once(parse_pattern(text).text if HASH in text else text for text in texts)


def _once(texts: Iterator[str]) -> Iterator[str]:
    seen: set[str] = set()
    for text in texts:
        if text not in seen:
            seen.add(text)
            yield text
