"""Matches routing keys to binding keys by regular expressions, as a check that shares no code with the broker."""

import re
from collections.abc import Iterable, Sequence

ANY_WORD = r"\.[^.]*"
WORDS = {"*": ANY_WORD, "#": f"(?:{ANY_WORD})*"}


def matched(binding_keys: Iterable[str], routing_keys: Sequence[str]) -> list[bool]:
    """Return for every routing key whether any of the binding keys matches it.

    Every word of a key begins with a dot here, so that a key of no words and one of one empty word differ.
    Source: RabbitMQ splits on every dot; an empty word is a word, and the empty key has none.
    Cost: binding keys times routing keys; pass the distinct keys only, not the key of every flight.
    """
    patterns = [
        re.compile("".join(WORDS.get(word, r"\." + re.escape(word)) for word in key.split(".")))
        if key
        else re.compile("")
        for key in binding_keys
    ]
    return [any(pattern.fullmatch(f".{key}" if key else "") for pattern in patterns) for key in routing_keys]
