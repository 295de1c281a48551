"""The broker's side of one connection: who it is, which vhost it opened, what ends with it (street step 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, cast

import structlog

from broker.amqp.errors import ConnectionFault, Refused
from broker.core.auth.permissions import Kind, Permissions
from broker.core.auth.users import User, Users
from broker.core.outflow import Outflow
from broker.core.queue import Queue
from broker.core.resource import Resource
from broker.core.session.channel import SessionOfChannel
from broker.core.vhost import Vhost

if TYPE_CHECKING:
    from broker.amqp.channel import Channel
    from broker.amqp.connection import Connection

__all__ = ["SessionOfConnection"]


class SessionOfConnection:
    """Is what a connection is to the broker, and the owner of its exclusive queues.

    Invariant: `user` is set once authenticated and `vhost` once opened; no channel is opened before both.
    `publishing` is set by the first publish, and `blocked` while an alarm keeps this connection from being read.
    """

    __slots__ = (
        "_log",
        "_users",
        "_vhosts",
        "connection",
        "name",
        "outflow",
        "peer_address",
        "permissions",
        "publishing",
        "user",
        "vhost",
    )

    def __init__(
        self,
        connection: Connection,
        *,
        users: Users,
        permissions: Permissions,
        vhosts: Mapping[str, Vhost],
        peer_address: str,
        peer_port: int = 0,
    ) -> None:
        self.connection = connection
        self.outflow = Outflow(connection)
        self.permissions = permissions
        self.peer_address = peer_address
        self.publishing = False
        self.user: User | None = None
        self.vhost: Vhost | None = None
        self._users = users
        self._vhosts = vhosts
        self.name = f"{peer_address}:{peer_port}"
        self._log = structlog.get_logger().bind(conn=self.name)

    # -- what the connection machine calls ----------------------------------------------------------------------------

    def authenticate(self, mechanism: str, response: bytes) -> None:
        """Takes the client's answer to the login question.

        Raises: Refused, with the reason for the log and not for the client.
        """
        try:
            self.user = self._users.authenticate(mechanism, response, self.peer_address)
        except Refused as refused:
            self._log.warning("connection.refused", reason=refused.reason)
            raise
        self._log = self._log.bind(user=self.user.name)

    def open(self, vhost: str) -> None:
        """Opens a vhost for this connection.

        Raises: 530 for a vhost that does not exist or that the user may not see.
        """
        assert self.user is not None
        found = self._vhosts.get(vhost)
        if found is None:
            raise ConnectionFault(530, f"vhost {vhost} not found")
        self.permissions.check_vhost(self.user, vhost)
        self.vhost = found
        self._log = self._log.bind(vhost=vhost)
        self._log.info("connection.opened")

    def open_channel(self, channel: Channel) -> SessionOfChannel:
        """Returns the session of a channel that was opened."""
        assert self.vhost is not None
        return SessionOfChannel(channel, self, self.vhost)

    def update_secret(self, secret: bytes, reason: str) -> None:
        """Takes a new secret; a password does not expire, so there is nothing to do with it, as in RabbitMQ."""

    def close(self) -> None:
        """Ends what belonged to the connection: its exclusive queues go with it."""
        if self.vhost is not None:
            self.vhost.owner_gone(self)
            connection = self.connection
            if connection.orderly or connection.failure is not None:
                self._log.info("connection.closed")
            else:
                self._log.warning("connection.lost", reason="the client went away without closing")

    def crashed(self, error: Exception) -> None:
        """Logs an exception that nobody expected; the machine closes this connection with 541."""
        self._log.error("connection.crashed", exc_info=error)

    def wake_consumers(self) -> None:
        """Has the queues of its consumers served: the client reads again. The channel served last is woken last."""
        sessions = [cast("SessionOfChannel", channel.session).basic for channel in self.connection.channels.values()]
        last = self.outflow.last_served
        turn = sessions.index(last) + 1 if last in sessions else 0
        for session in sessions[turn:] + sessions[:turn]:
            session.wake()

    # -- what the other sessions ask ----------------------------------------------------------------------------------

    @property
    def exclusive_queues(self) -> Iterable[Queue]:
        """The queues that only this connection may use."""
        return self.vhost.owned_by(self) if self.vhost is not None else ()

    def check(self, resource: Resource, kind: Kind) -> None:
        """Lets the connection's user touch a resource. Raises: 403."""
        assert self.user is not None
        self.permissions.check(self.user, resource, kind)

    def check_topic(self, exchange: Resource, key: str, kind: Kind) -> None:
        """Lets the connection's user use a routing key of a topic exchange. Raises: 403."""
        assert self.user is not None
        self.permissions.check_topic(self.user, exchange, key, kind)
