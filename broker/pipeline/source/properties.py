"""Locates the properties of many messages, one property at a time instead of one message at a time.

The flags of a content header define which properties it has, and in which order (AMQP 0-9-1 section 4.2.6.1). So one
pass over all headers finds the place of each property in each of them, and only requested properties are decoded.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from broker.amqp.content_header import KINDS, UNKNOWN_FLAGS, WIDTHS
from broker.amqp.wire import PROPERTIES_AT

__all__ = ["Found", "PropertyPlaces"]

FLAGS_BYTES: Final = 2
LENGTH_BYTES: Final = 4


class Found(NamedTuple):
    """The places of one property. Shapes: arrays over all rows; for a text, the octets after its length."""

    present: Any
    starts: Any
    lengths: Any


class PropertyPlaces:
    """The places of all properties of the messages of a slot.

    Shapes: octets is the slot file as numbers; starts and lengths say where each content header is.
    Invariant: no place lies outside its header, for any octets; `malformed` marks headers that exceed their length.
    """

    __slots__ = ("_found", "malformed")

    def __init__(self, octets: Any, starts: Any, lengths: Any) -> None:
        limit = starts + lengths
        at = np.minimum(starts + PROPERTIES_AT, limit)
        short = limit - at < FLAGS_BYTES
        high = octets[at].astype(np.uint16)
        flags = np.where(short, 0, (high << 8) | octets[at + 1])
        at = np.minimum(at + FLAGS_BYTES, limit)
        malformed = short | ((flags & UNKNOWN_FLAGS) != 0)
        any_flags = int(np.bitwise_or.reduce(flags)) if len(flags) else 0
        self._found: dict[str, Found] = {}
        for flag, name, kind in KINDS:
            if not any_flags & flag:
                continue
            present = (flags & flag) != 0
            start, length = _extent(octets, at, limit, kind)
            end = start + length
            malformed |= present & (end > limit)
            end = np.minimum(end, limit)
            start = np.minimum(start, end)
            self._found[name] = Found(present, start, end - start)
            at = np.where(present, end, at)
        self.malformed = malformed | (at != limit)

    def found(self, name: str) -> Found | None:
        """Return the places of a property, by its name in pamqp; None if no message has it."""
        return self._found.get(name)


def _extent(octets: Any, at: Any, limit: Any, kind: str) -> tuple[Any, Any]:
    """Return where each value starts, if it exists at all, and its stated length."""
    if kind == "shortstr":
        return at + 1, octets[np.minimum(at, limit)].astype(np.int64)
    if kind == "table":
        return at, LENGTH_BYTES + number_at(octets, at, LENGTH_BYTES)
    return at, np.full(len(at), WIDTHS[kind], np.int64)


def number_at(octets: Any, at: Any, width: int) -> Any:
    """Return the big-endian numbers of `width` octets at these places; one of 8 octets may wrap around."""
    number = octets[at].astype(np.int64)
    for octet in range(1, width):
        number = (number << 8) | octets[at + octet]
    return number
