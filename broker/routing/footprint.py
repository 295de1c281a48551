"""The memory that an object holds."""

from __future__ import annotations

from gc import get_referents
from sys import getsizeof
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Final

CODE: Final = (type, FunctionType, BuiltinFunctionType, ModuleType)
"""Types that an object refers to but does not own."""


def footprint_bytes(root: object, closed: tuple[type, ...] = (), without: type | tuple[type, ...] = ()) -> int:
    """Return the memory of all that can be reached from an object, each once, without classes and code.

    An object of a closed type counts by its own size and is not followed, one of a type without does not count at all.
    Cost: all reachable objects.
    """
    seen: set[int] = set()
    pending = [root]
    total_bytes = 0
    while pending:
        item = pending.pop()
        if id(item) in seen or isinstance(item, (*CODE, without)):
            continue
        seen.add(id(item))
        total_bytes += getsizeof(item)
        if isinstance(item, closed):
            continue
        pending += get_referents(item)
        if isinstance(item, dict):
            pending += item  # a dict does not report its string keys to the garbage collector
    return total_bytes
