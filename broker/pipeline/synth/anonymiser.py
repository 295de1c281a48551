"""Other words for words: the same for the same, so that patterns match alike, and no way back without the salt."""

from __future__ import annotations

import hmac
from base64 import b32encode
from functools import lru_cache
from typing import Final

from broker.pipeline.routes.topology import PREDECLARED
from broker.routing.pattern import HASH, STAR

__all__ = ["Anonymiser"]

TOKEN_BYTES: Final = 6  # 48 bits: two of 100,000 words are the same token once in 50,000 lakes
KEPT: Final = frozenset({"", STAR, HASH})


class Anonymiser:
    """Gives each word a token that depends on the word and the salt alone.

    Wildcards, the empty word and the names of predeclared exchanges stay as they are: they say nothing.
    """

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self.word = lru_cache(maxsize=1 << 17)(self._word)

    def _word(self, word: str) -> str:
        """Return the token of one word."""
        if word in KEPT:
            return word
        digest = hmac.digest(self._salt, word.encode("utf-8", "surrogateescape"), "sha256")
        return b32encode(digest[:TOKEN_BYTES]).decode().rstrip("=").lower()

    def key(self, key: str) -> str:
        """Return a routing key or a pattern, word by word."""
        return ".".join(map(self.word, key.split(".")))

    def name(self, name: str) -> str:
        """Return the name of an exchange, a queue or a header."""
        return name if name in PREDECLARED else self.word(name)

    def number(self, number: int) -> int:
        """Return another number with as many digits."""
        digits = len(str(abs(number)))
        digest = hmac.digest(self._salt, str(number).encode(), "sha256")
        lowest = 10 ** (digits - 1) if digits > 1 else 0
        return (lowest + int.from_bytes(digest[:8]) % (10**digits - lowest)) * (-1 if number < 0 else 1)
