"""The clients that are connected, by vhost and client id: one connection each."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from broker.amqp.connection import Connection
from broker.core.mqtt.faults import TakenOver


@mypyc_attr(allow_interpreted_subclasses=True)
class MqttClients(dict[tuple[str, str], Connection]):
    """The connection of each client id of a vhost."""

    def enter(self, vhost: str, client_id: str, connection: Connection) -> None:
        """Add a connection; another one with the client id ends. Raises: Postponed, in a cluster."""
        older = self.get((vhost, client_id))
        if older is not None:
            older.fail(TakenOver())
        self[vhost, client_id] = connection

    def leave(self, vhost: str, client_id: str, connection: Connection) -> None:
        """Remove a connection, unless another one took its place."""
        if self.get((vhost, client_id)) is connection:
            del self[vhost, client_id]
