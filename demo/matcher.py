"""Matches routing keys to binding keys by regular expressions, as a check that shares no code with the broker."""

import re
from collections.abc import Iterable, Sequence

ANY_WORD = r"\.[^.]*"
WORDS = {"*": ANY_WORD, "#": f"(?:{ANY_WORD})*"}


def dotted(key: str) -> str:
    """Return the key with a dot before every word, so that a key of no words and one of one empty word differ.

    Source: RabbitMQ splits on every dot; an empty word is a word, and the empty key has none.
    """
    return f".{key}" if key else ""


def translate(binding_key: str) -> re.Pattern[str]:
    """Return the regular expression over dotted routing keys that is equivalent to the binding key."""
    words = binding_key.split(".") if binding_key else []
    return re.compile("".join(WORDS.get(word, r"\." + re.escape(word)) for word in words))


def matches(binding_keys: Iterable[str], routing_key: str) -> bool:
    """Return whether any of the binding keys matches the routing key."""
    return any(translate(binding_key).fullmatch(dotted(routing_key)) for binding_key in binding_keys)


def matched(binding_keys: Iterable[str], routing_keys: Sequence[str]) -> list[bool]:
    """Return for every routing key whether any of the binding keys matches it.

    Cost: binding keys times routing keys; pass the distinct keys only, not the key of every flight.
    """
    patterns = [translate(binding_key) for binding_key in binding_keys]
    return [any(pattern.fullmatch(dotted(key)) for pattern in patterns) for key in routing_keys]
