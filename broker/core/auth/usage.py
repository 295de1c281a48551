"""The connections and channels that each user has open, and the refusal of those beyond the limit.

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

    Units: ``opened`` and ``closed`` count those of all users since the start.
    Invariant: each connection and channel is closed once. A name with nothing open is not kept.
    """

    def __init__(self, users: Users) -> None:
        """Wrap the users, which have the limits."""
        self._users = users
        self._open: dict[str, dict[str, int]] = {CONNECTIONS: {}, CHANNELS: {}}
        self.opened = {CONNECTIONS: 0, CHANNELS: 0}
        self.closed = {CONNECTIONS: 0, CHANNELS: 0}

    def check(self, limit: str, name: str) -> None:
        """Refuse one more connection, or channel on all connections together, than a user may have. Raises: 530."""
        user = self._users.get(name)
        most = None if user is None else user.limits.get(limit)
        if most is not None and self._open[limit].get(name, 0) >= most:
            raise ConnectionFault(530, REFUSALS[limit].format(name, most))

    def open(self, limit: str, name: str) -> None:
        """Count a connection or channel of a user."""
        self._open[limit][name] = self._open[limit].get(name, 0) + 1
        self.opened[limit] += 1

    def close(self, limit: str, name: str) -> None:
        """Count one connection or channel less for a user."""
        self.closed[limit] += 1
        self._open[limit][name] -= 1
        if not self._open[limit][name]:
            del self._open[limit][name]
