"""Long walks over objects, with other work of the loop between their pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import Final, TypeVar

__all__ = ["OBJECTS_AT_ONCE", "in_pieces"]

OBJECTS_AT_ONCE: Final = 200  # objects that are looked at between two turns of the loop: less than a millisecond

T = TypeVar("T")


async def in_pieces(objects: Iterable[T], at_once: int = OBJECTS_AT_ONCE) -> AsyncIterator[T]:
    """Yield objects, and let the loop do other work after each piece."""
    rest = iter(objects)
    while piece := list(islice(rest, at_once)):
        for one in piece:
            yield one
        await asyncio.sleep(0)
