"""All conversations: the hand-written families and the random ones."""

from __future__ import annotations

from itertools import chain

from tests.differential import generator
from tests.differential.families import (
    binding,
    channel,
    connection,
    consumer,
    dead_letter,
    exchange,
    expiry,
    extension,
    headers,
    publish,
    queue,
    settling,
)
from tests.differential.steps import Conversation

__all__ = ["CONVERSATIONS"]

_FAMILIES = (
    connection,
    channel,
    exchange,
    queue,
    binding,
    headers,
    publish,
    expiry,
    dead_letter,
    consumer,
    settling,
    extension,
    generator,
)

CONVERSATIONS: dict[str, Conversation] = {
    one.name: one for one in chain.from_iterable(family.conversations() for family in _FAMILIES)
}
