"""Bindings as conjunctions: which messages of a space a binding asks for, as a topic pattern."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Final

from broker.overlay.packets import Conjunction, Space
from broker.routing.pattern import HASH, STAR, BindingKeyError, Pattern, PatternLimits, parse_pattern, split_words

EVERYTHING: Final = Pattern(HASH, (HASH,), literal=False)
_LIMITS: Final = PatternLimits()


def conjunction(space: Space, kind: str, key: str) -> Conjunction:
    """Return the conjunction of a binding key at an exchange of a type.

    Every type but topic and direct filters by something else than the key; such a binding asks for everything. A topic
    exchange of another dialect than AMQP's is another type.
    """
    if kind == "topic":
        return Conjunction(space, pattern_of(key).text)
    if kind == "direct":
        words = split_words(key)
        return Conjunction(space, HASH if HASH in words or STAR in words else key)
    return Conjunction(space, HASH)


def pattern_of(text: str) -> Pattern:
    """Return the text of a conjunction as a pattern; what is not a pattern within the limits asks for everything."""
    try:
        return parse_pattern(text, _LIMITS)
    except BindingKeyError:
        return EVERYTHING


@lru_cache(maxsize=65_536)
def checksum(conjunction: Conjunction) -> int:
    """Return 64 bits that stand for a conjunction; those of a set are combined by exclusive or."""
    space = conjunction.space
    text = f"{space.vhost}\0{space.exchange}\0{conjunction.pattern}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
