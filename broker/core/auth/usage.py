"""Count the open connections and channels of each user, and refuse those beyond the user's limits.

Codes and texts are those of RabbitMQ 4.3 (rabbit_reader). A limit applies only to connections and channels opened after
it was set.
"""

from __future__ import annotations

from typing import Final

from broker.amqp.errors import ConnectionFault
from broker.core.auth.user_limits import CHANNELS, CONNECTIONS
from broker.core.auth.users import Users

REFUSALS: Final = {
    CONNECTIONS: "connection refused for user '{}': user connection limit ({}) is reached",
    CHANNELS: "number of channels opened for user '{}' has reached the maximum allowed user limit of ({})",
}


class Usage:
    """Count connections and channels by the name of their limit, and by user name.

    Units: ``opened`` and ``closed`` count the connections and channels of all users since startup.
    Invariant: each connection and channel is closed once. A user without any has no entry.
    """

    def __init__(self, users: Users) -> None:
        self._users = users
        self._open: dict[str, dict[str, int]] = {CONNECTIONS: {}, CHANNELS: {}}
        self.opened = {CONNECTIONS: 0, CHANNELS: 0}
        self.closed = {CONNECTIONS: 0, CHANNELS: 0}

    def check(self, limit: str, name: str) -> None:
        """Refuse another connection or channel of a user who has reached the limit. Raises: 530."""
        user = self._users.get(name)
        allowed = None if user is None else user.limits.get(limit)
        if allowed is not None and self._open[limit].get(name, 0) >= allowed:
            raise ConnectionFault(530, REFUSALS[limit].format(name, allowed))

    def open(self, limit: str, name: str) -> None:
        self._open[limit][name] = self._open[limit].get(name, 0) + 1
        self.opened[limit] += 1

    def close(self, limit: str, name: str) -> None:
        self.closed[limit] += 1
        self._open[limit][name] -= 1
        if not self._open[limit][name]:
            del self._open[limit][name]
