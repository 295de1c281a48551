"""A reference for covering of topic patterns that matches sample keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from broker.routing.pattern import HASH, STAR, Pattern, parse_pattern
from tests.property.topic_reference import matches

FRESH = "\0fresh"  # a word that occurs in no pattern


def samples(narrower: Sequence[str], longest: int) -> list[tuple[str, ...]]:
    """Return keys that match the pattern: its wildcards become fresh words, each `#` up to `longest` of them.

    Every pattern of fewer than `longest` words that matches all of these keys covers the narrower pattern. Proof: a
    pattern that does not cover the narrower one fails to match some key of it. It also fails to match that key with
    fresh words in place of the words that wildcards stand for, because a wildcard that accepts a fresh word accepts
    any word. `longest` fresh words in a row suffice: each word uses up a `*` or stays in a `#`, so after more words
    than the wider pattern has, only states within a `#` remain, and they remain for all further words.
    """
    choices: list[list[tuple[str, ...]]] = []
    for word in narrower:
        if word == HASH:
            choices.append([(FRESH,) * count for count in range(longest + 1)])
        else:
            choices.append([(FRESH if word == STAR else word,)])
    return [tuple(word for part in parts for word in part) for parts in product(*choices)]


def reference_covers(wider: Sequence[str], narrower: Sequence[str]) -> bool:
    """Return whether the wider pattern matches every key that the narrower one matches."""
    return all(matches(wider, key) for key in samples(narrower, len(wider) + 1))


def short_patterns() -> list[Pattern]:
    """Return the 247 canonical patterns of up to four words over a, b, `*` and `#`."""
    keys = (".".join(words) for length in range(5) for words in product("ab*#", repeat=length))
    return list({pattern.text: pattern for pattern in map(parse_pattern, keys)}.values())
