"""The publishers that lost messages: a limit refused what they published on a channel without confirms."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["LostPublishes"]

PUBLISHERS_MAX: Final = 1000


class LostPublishes:
    """Counts lost messages by connection, also after it has ended; knows the last PUBLISHERS_MAX that lost any."""

    __slots__ = ("_by_publisher",)

    def __init__(self) -> None:
        self._by_publisher: dict[tuple[str, str], tuple[int, str | None]] = {}

    def count(self, connection: str, user: str, given_name: str | None) -> bool:
        """Count a message of a user's connection, and return whether it is the first one."""
        publishers, key = self._by_publisher, (connection, user)
        known = publishers.pop(key, None)
        publishers[key] = (1 if known is None else known[0] + 1, given_name)
        if len(publishers) > PUBLISHERS_MAX:
            del publishers[next(iter(publishers))]
        return known is None

    def of(self, connection: str, user: str) -> int:
        """Return how many messages a connection has lost."""
        return self._by_publisher.get((connection, user), (0, None))[0]

    def rows(self) -> list[dict[str, Any]]:
        """Return the publishers as JSON, the last one to lose a message first."""
        return [
            {"connection": connection, "connection_name": given_name, "user": user, "messages": count}
            for (connection, user), (count, given_name) in reversed(self._by_publisher.items())
        ]
