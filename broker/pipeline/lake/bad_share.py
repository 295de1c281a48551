"""How many messages of a batch may be unreadable: a number, or a share in percent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Self

from broker.pipeline.faults import LakeRefused

__all__ = ["FEW", "BadShare"]

FEW: Final = 10  # what any share but 0% allows: of a small batch one message is many percent
_SHARE: Final = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%")


@dataclass(frozen=True, slots=True)
class BadShare:
    """A limit. Shapes: as written, 5 or 0.1%."""

    text: str
    messages: int | None
    share: Fraction | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the limit that a text says. Raises: LakeRefused."""
        text = text.strip()
        percent = _SHARE.fullmatch(text)
        if percent is not None and Fraction(percent[1]) <= 100:
            return cls(text, None, Fraction(percent[1]) / 100)
        if text.isascii() and text.isdigit():
            return cls(text, int(text), None)
        raise LakeRefused(f"{text!r} is neither a number of messages nor a share such as 0.1%")

    def exceeded(self, bad: int, messages: int) -> bool:
        """Return whether so many bad ones of so many messages are too many."""
        if self.share is None:
            return bad > (self.messages or 0)
        few = FEW if self.share else 0
        return bad > few and Fraction(bad) > self.share * messages

    def __str__(self) -> str:
        return self.text
