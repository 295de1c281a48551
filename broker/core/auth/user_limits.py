"""The limits on a user's open connections and channels, in the form of RabbitMQ's definitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

BITS_MAX: Final = 53  # many JSON parsers do not read larger integers exactly
CONNECTIONS: Final = "max-connections"
CHANNELS: Final = "max-channels"


def checked_limits(table: Any, known: Collection[str]) -> dict[str, int]:
    """Check and copy a table of limits; RabbitMQ writes an empty one as a list. Raises: ValueError with the reason."""
    if table is None or table == []:
        return {}
    if not isinstance(table, Mapping):
        raise ValueError("limits should be an object")  # noqa: TRY004 - the request is wrong, not the caller
    for name, value in table.items():
        if name not in known:
            raise ValueError(f"unknown limit '{name}'; known: {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name} should be an integer")  # noqa: TRY004 - as above
        if value.bit_length() > BITS_MAX:
            raise ValueError(f"{name} is larger than a limit can be")
    return dict(table)


def limit_in(table: Mapping[str, int], name: str) -> int | None:
    """Return a limit, or None if there is none."""
    value = table.get(name, -1)
    return None if value < 0 else value


@dataclass(frozen=True, slots=True)
class UserLimits:
    """The limits of one user, as an operator wrote them: a negative value means no limit, and 0 allows none."""

    table: tuple[tuple[str, int], ...] = ()

    def to_json(self) -> dict[str, int]:
        return dict(self.table)

    def get(self, name: str) -> int | None:
        """Return a limit, or None if there is none."""
        return limit_in(dict(self.table), name)

    def updated(self, changes: Mapping[str, int]) -> UserLimits:
        return UserLimits(tuple({**dict(self.table), **changes}.items()))


def user_limits_of(table: Any) -> UserLimits:
    """Return the limits of a definitions entry. Raises: ValueError with the reason."""
    return UserLimits(tuple(checked_limits(table, (CONNECTIONS, CHANNELS)).items()))
