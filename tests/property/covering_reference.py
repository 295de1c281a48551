"""Whether one pattern covers another, decided by matching keys: what the covering test is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from broker.routing.pattern import HASH, STAR, Pattern, parse_pattern
from tests.property.topic_reference import matches

FRESH = "\0fresh"  # a word that no pattern names


def samples(narrower: Sequence[str], longest: int) -> list[tuple[str, ...]]:
    """Return the keys that the pattern matches with fresh words for wildcards, up to `longest` of them for each `#`.

    Every pattern of fewer than `longest` words that matches all of these covers the narrower one. For if it does not
    cover it, it fails to match some key which the narrower one matches. It then fails as well to match that key with
    fresh words in place of those that wildcards stand for, because what takes a fresh word takes any. And `longest`
    fresh words in a row are as good as more: each word uses up a `*` or stays in a `#`, so that after more words than
    the wider pattern has, only what is in a `#` is left, and stays there.
    """
    choices: list[list[tuple[str, ...]]] = []
    for word in narrower:
        if word == HASH:
            choices.append([(FRESH,) * count for count in range(longest + 1)])
        else:
            choices.append([(FRESH if word == STAR else word,)])
    return [tuple(word for part in parts for word in part) for parts in product(*choices)]


def reference_covers(wider: Sequence[str], narrower: Sequence[str]) -> bool:
    """Return whether every key that the narrower pattern matches is matched by the wider one."""
    return all(matches(wider, key) for key in samples(narrower, len(wider) + 1))


def short_patterns() -> list[Pattern]:
    """Return the 247 canonical patterns of up to four words over a, b, `*` and `#`."""
    keys = (".".join(words) for length in range(5) for words in product("ab*#", repeat=length))
    return list({pattern.text: pattern for pattern in map(parse_pattern, keys)}.values())
