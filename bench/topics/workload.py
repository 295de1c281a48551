"""Generates patterns and routing keys: five levels of words, stars and hashes in the shares of RabbitMQ's article.

The article does not publish its words; these stand in for few regions, some sites and many devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from random import Random

from broker.routing.pattern import HASH, STAR, parse_pattern

VOCABULARY = (20, 50, 2000, 30, 5)
WORDS = tuple([f"w{level}_{number}" for number in range(size)] for level, size in enumerate(VOCABULARY))
STARS, HASHES = 0.10, 0.01
SHORTEST = 3
_LONG = 64
_LETTERS = 40


def patterns(count: int, seed: int = 1) -> list[str]:
    """Return distinct wildcard patterns of three to five words, in random order; no two match the same keys."""
    return list(islice(_distinct(_draw_patterns(Random(seed))), count))


def keys(count: int, seed: int = 3) -> list[str]:
    """Return distinct routing keys of at most five words, in random order."""
    return list(islice(_once(_draw_keys(Random(seed))), count))


def _draw_patterns(random: Random) -> Iterator[str]:
    """Yield an endless sequence of patterns with at least one wildcard."""
    draw, levels = random.random, len(VOCABULARY)
    while True:
        words: list[str] = []
        wild = False
        for level in range(SHORTEST + int(draw() * (levels - SHORTEST + 1))):
            lot = draw()
            if lot < STARS + HASHES:
                wild = True
                words.append(STAR if lot < STARS else HASH)
            else:
                words.append(WORDS[level][int(draw() * VOCABULARY[level])])
        if wild:
            yield ".".join(words)


def _draw_keys(random: Random) -> Iterator[str]:
    draw, levels = random.random, len(VOCABULARY)
    while True:
        length = SHORTEST + int(draw() * (levels - SHORTEST + 1))
        yield ".".join([row[int(draw() * len(row))] for row in WORDS[:length]])


def _distinct(texts: Iterator[str]) -> Iterator[str]:
    return _once(parse_pattern(text).text if HASH in text else text for text in texts)


def _once(texts: Iterator[str]) -> Iterator[str]:
    seen: set[str] = set()
    for text in texts:
        if text not in seen:
            seen.add(text)
            yield text


def hostile_families(count: int) -> dict[str, tuple[list[str], list[str]]]:
    """Return hostile sets, which match at every word: by family its patterns and keys of 64 words."""
    random = Random(11)
    letters = [f"a{number}" for number in range(_LETTERS)]
    mixed = [".".join(random.choices(letters, k=_LONG)) for _ in range(500)]
    nearly_same = [".".join("b1" if random.random() < 0.03 else "a0" for _ in range(_LONG)) for _ in range(500)]
    numbers = range(count)
    return {
        "#.a.#": ([f"#.a{number}.#" for number in numbers], mixed),
        "#.a.#.b": ([f"#.{letters[number % _LETTERS]}.#.b{number // _LETTERS}" for number in numbers], mixed),
        "#.a.b.c.#": (_runs(letters, count), mixed),
        "a.#.b": ([f"{letters[number % _LETTERS]}.#.b{number // _LETTERS}" for number in numbers], mixed),
        "#.*.a.*.#": (_star_runs(count), nearly_same),
    }


def _runs(letters: list[str], count: int) -> list[str]:
    """Return runs of three letters after a `#` and before another."""
    return [f"#.{'.'.join(run)}.#" for run, _ in zip(product(letters, repeat=3), range(count), strict=False)]


def _star_runs(count: int) -> list[str]:
    """Return all forms of a run of one letter with stars: a match reaches every node of the patterns."""
    length = max(2, count.bit_length())
    runs = product(("a0", "*"), repeat=length)
    return [f"#.a0.{'.'.join(run)}.z.#" for run, _ in zip(runs, range(count), strict=False)]
