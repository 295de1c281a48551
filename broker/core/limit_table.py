"""Limits in the form of RabbitMQ's definitions, such as `{"max-connections": 10}`; a negative value means none."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

__all__ = ["checked_limits", "limit_in"]

BITS_MAX: Final = 53  # many JSON readers have no larger exact integers


def checked_limits(table: Any, known: Collection[str]) -> dict[str, int]:
    """Return a table of limits. RabbitMQ writes an empty one as a list. Raises: ValueError with the reason."""
    if table is None or table == []:
        return {}
    if not isinstance(table, Mapping):
        raise ValueError("limits should be an object")  # noqa: TRY004 - what somebody sent is wrong, not the caller
    for name, value in table.items():
        if name not in known:
            raise ValueError(f"there is no limit '{name}', but {' and '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name} should be an integer")  # noqa: TRY004 - as above
        if value.bit_length() > BITS_MAX:
            raise ValueError(f"{name} is larger than a limit can be")
    return dict(table)


def limit_in(table: Mapping[str, int], name: str) -> int | None:
    """Return a limit, None for no limit."""
    value = table.get(name, -1)
    return None if value < 0 else value
