"""The limits of a user: connections and channels that may be open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.core.limit_table import checked_limits, limit_in

__all__ = ["CHANNELS", "CONNECTIONS", "UserLimits", "user_limits_of"]

CONNECTIONS: Final = "max-connections"
CHANNELS: Final = "max-channels"


@dataclass(frozen=True, slots=True)
class UserLimits:
    """The limits of one user, as an operator wrote them: a negative one is no limit, 0 allows nothing."""

    table: tuple[tuple[str, int], ...] = ()

    def to_json(self) -> dict[str, int]:
        """Return the limits as RabbitMQ's definitions have them."""
        return dict(self.table)

    def get(self, name: str) -> int | None:
        """Return a limit, None for no limit."""
        return limit_in(dict(self.table), name)

    def updated(self, changes: Mapping[str, int]) -> UserLimits:
        """Return the limits with some of them changed."""
        return UserLimits(tuple({**dict(self.table), **changes}.items()))


def user_limits_of(table: Any) -> UserLimits:
    """Return the limits of a definitions entry. Raises: ValueError with the reason."""
    return UserLimits(tuple(checked_limits(table, (CONNECTIONS, CHANNELS)).items()))
