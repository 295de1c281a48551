"""How the two sides write the same thing: routing keys and binding keys here, topic frames and prefixes in ØMQ.

ØMQ matches the octets at the start of a message; AMQP matches words. With a dot behind the routing key, the prefix
`a.b.` is exactly the binding key `a.b.#`, which matches the routing key `a.b` too.
Invariant: whatever is translated asks for as much as the original, or for more; the receiver of a message filters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.amqp.wire import SHORT_STRING_MAX_BYTES
from broker.routing.pattern import HASH, STAR, split_words

__all__ = ["TopicForm"]

WILDCARDS: Final = (STAR, HASH)
DOT: Final = b"."


class TopicForm:
    """Translates for one endpoint.

    Shapes: `trailing_dot` says that a topic frame is the routing key and a dot, else it is the routing key alone.
    Units: `words_max` is how many words a binding key can have.
    """

    def __init__(self, *, trailing_dot: bool, words_max: int) -> None:
        self._end = DOT if trailing_dot else b""
        self._words_max = words_max

    def topic(self, key: str) -> bytes:
        """Return the topic frame of a routing key."""
        return key.encode() + self._end

    def key(self, topic: bytes) -> str:
        """Return the routing key of a topic frame; a missing dot is added in thought.

        Raises: ValueError when it cannot be a routing key.
        """
        octets = topic.removesuffix(self._end)
        if len(octets) > SHORT_STRING_MAX_BYTES:
            raise ValueError(f"a topic of {len(topic)} bytes, a routing key has {SHORT_STRING_MAX_BYTES} at most")
        try:
            return octets.decode()
        except UnicodeDecodeError:
            raise ValueError("a topic that is not UTF-8") from None

    def binding_key(self, prefix: bytes) -> str:
        """Return the binding key that matches the routing keys of all topics with a prefix.

        A word that is cut short, is a wildcard or no text asks for everything from there on; so does what would be
        too long.
        """
        if prefix == DOT:  # the topic of the empty routing key, which has no words
            return HASH
        words = list(self._words(prefix))
        return ".".join([*words[: self._words_max - 1], HASH])

    def _words(self, prefix: bytes) -> Iterator[str]:
        left_bytes = SHORT_STRING_MAX_BYTES - len(HASH)
        for octets in prefix.split(DOT)[:-1]:
            left_bytes -= len(octets) + 1
            try:
                word = octets.decode()
            except UnicodeDecodeError:
                return
            if word in WILDCARDS or left_bytes < 0:
                return
            yield word

    def prefix(self, pattern: str) -> bytes:
        """Return the prefix that the topics of all routing keys have which match a topic pattern."""
        literal = []
        for word in split_words(pattern):
            if word in WILDCARDS:
                break
            literal.append(word.encode())
        if not literal:  # the empty pattern matches the empty routing key alone
            return b"" if pattern else self._end
        return DOT.join(literal) + self._end
