"""The connections and channels that each user has open, and the refusal of those beyond the limit.

Codes and texts are those of RabbitMQ 4.3 (rabbit_reader). A limit applies only to connections and channels opened after
it was set.
"""

from __future__ import annotations

from broker.amqp.errors import ConnectionFault
from broker.core.auth.user_limits import CHANNELS, CONNECTIONS
from broker.core.auth.users import Users


class Usage:
    """Counts by user name.

    Units: ``connections_opened`` and its siblings count opened and closed connections and channels of all users since
        the start.
    Invariant: each connection and channel is closed once. A name with nothing open is not kept.
    """

    def __init__(self, users: Users) -> None:
        """Wrap the users, which have the limits."""
        self._users = users
        self._connections: dict[str, int] = {}
        self._channels: dict[str, int] = {}
        self.connections_opened = 0
        self.connections_closed = 0
        self.channels_opened = 0
        self.channels_closed = 0

    def check_connections(self, name: str) -> None:
        """Refuse one more connection than a user may have. Raises: 530."""
        limit = self._limit(name, CONNECTIONS)
        if limit is not None and self._connections.get(name, 0) >= limit:
            raise ConnectionFault(
                530, f"connection refused for user '{name}': user connection limit ({limit}) is reached"
            )

    def open_connection(self, name: str) -> None:
        """Count a connection of a user."""
        self._connections[name] = self._connections.get(name, 0) + 1
        self.connections_opened += 1

    def close_connection(self, name: str) -> None:
        """Count one connection less for a user."""
        _take_one(self._connections, name)
        self.connections_closed += 1

    def check_channels(self, name: str) -> None:
        """Refuse one more channel than a user may have on all connections together. Raises: 530."""
        limit = self._limit(name, CHANNELS)
        if limit is not None and self._channels.get(name, 0) >= limit:
            raise ConnectionFault(
                530,
                f"number of channels opened for user '{name}' has reached the maximum allowed user limit of ({limit})",
            )

    def open_channel(self, name: str) -> None:
        """Count a channel of a user."""
        self._channels[name] = self._channels.get(name, 0) + 1
        self.channels_opened += 1

    def close_channel(self, name: str) -> None:
        """Count one channel less for a user."""
        _take_one(self._channels, name)
        self.channels_closed += 1

    def _limit(self, name: str, limit: str) -> int | None:
        user = self._users.get(name)
        return None if user is None else user.limits.get(limit)


def _take_one(counts: dict[str, int], name: str) -> None:
    left = counts[name] - 1
    if left:
        counts[name] = left
    else:
        del counts[name]
