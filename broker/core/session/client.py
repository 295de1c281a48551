"""The client of a connection, as its channels use it: its user, its rights, and its method budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.amqp.connection import Connection
from broker.core.auth.permissions import Kind, Permissions
from broker.core.auth.usage import Usage
from broker.core.auth.user_limits import CHANNELS
from broker.core.auth.users import User
from broker.core.deadlines import Deadlines
from broker.core.names import Resource
from broker.core.postponed import Postponed
from broker.core.publish_credit import CreditShare
from broker.core.queue.output_window import OutputWindow
from broker.routing.exchange import Exchange

BUDGET_UNITS: Final = 200  # per turn: about two milliseconds


class MethodBudget:
    """Limit the time that the methods of one connection take in a turn of the loop: when they have used up the budget,
    the connection is held until the next turn. For publishes it suffices to limit the octets read in a turn, but other
    methods may cost as much as many publishes.
    Units: a unit is about ten microseconds.
    """

    __slots__ = ("_connection", "_deadlines", "_left")

    def __init__(self, connection: Connection, deadlines: Deadlines) -> None:
        self._connection = connection
        self._deadlines = deadlines
        self._left = BUDGET_UNITS

    def spend(self, units: int) -> None:
        """Count the cost of a method; if the budget is used up, hold the connection until the next turn."""
        self._left -= units
        if self._left <= 0 and not self._connection.held:
            self._connection.hold()
            self._deadlines.next_turn(self, self._renew)

    def _renew(self) -> None:
        self._left = BUDGET_UNITS
        self._connection.release()


class SessionClient:
    """The client of one connection, and the owner of its exclusive queues.

    Invariant: `user` is set after the login, `method_budget` and `publish_share` when a vhost is opened, which precedes
        the first channel. `publishing` is set by the first publish. `drains` counts the drains in progress; `unsettled`
        counts the unacked messages of channels that were closed during a drain. `patient` is set if an alarm may block
        the client without a time limit: a client within this process or with an overlay link. `postponed` contains the
        postponements of the running method, in order: a connection postpones one method at a time. `client_key` is the
        id of an MQTT client, encoded as in routing keys; it is empty for other clients.
    """

    __slots__ = ("client_key", "connection", "drains", "method_budget", "name", "output_window", "patient",
                 "permissions", "postponed", "publish_share", "publishing", "unsettled", "usage", "user")  # fmt: skip

    def __init__(self, connection: Connection, name: str, permissions: Permissions, usage: Usage) -> None:
        """`name` is the connection's name, as RabbitMQ prints it."""
        self.connection = connection
        self.name = name
        self.output_window = OutputWindow(connection)
        self.permissions = permissions
        self.usage = usage
        self.publishing = False
        self.drains = 0
        self.unsettled = 0
        self.patient = False
        self.client_key = ""
        self.postponed: list[Postponed] = []
        self.user: User | None = None
        self.method_budget: MethodBudget
        self.publish_share: CreditShare

    @property
    def known_user(self) -> User:
        assert self.user is not None
        return self.user

    def user_changed(self, user: User) -> None:
        self.user = user

    def identify(self, client_key: str) -> None:
        """Set the id of an MQTT client, as encoded in routing keys."""
        self.client_key = client_key

    def publishes(self) -> None:
        """Record that the client publishes, so that an alarm blocks the connection."""
        self.publishing = True

    def be_patient(self) -> None:
        """Let an alarm block the connection for as long as it lasts."""
        self.patient = True

    def check(self, resource: Resource, kind: Kind) -> None:
        """Check a right of the user to a resource. Raises: 403."""
        self.permissions.check(self.known_user, resource, kind)

    def check_new(self, resource: Resource, arguments: Mapping[str, Any]) -> None:
        """Check the rights that a new resource needs if its arguments name an exchange. Raises: 403, 406."""
        self.permissions.check_new(self.known_user, resource, arguments)

    def check_any(self, resource: Resource) -> None:
        """Check that the user has at least one right to a resource. Raises: 403."""
        self.permissions.check_any(self.known_user, resource)

    def check_source(self, source: Resource, exchange: Exchange | None, key: str) -> None:
        """Check the rights to bind to an exchange with a binding key. Raises: 403."""
        self.permissions.check_source(self.known_user, source, exchange, key, self.client_key)

    def narrows_topics(self, exchange: Resource) -> bool:
        """Return whether routing keys at a topic exchange must be checked one by one."""
        return self.permissions.narrows_topics(self.known_user, exchange)

    def check_topic(self, exchange: Resource, key: str, kind: Kind) -> None:
        """Check the right to a routing key of a topic exchange. Raises: 403."""
        self.permissions.check_topic(self.known_user, exchange, key, kind, self.client_key)

    def has_own_rights(self, exchange: Resource) -> bool:
        """Return whether the routing keys that the client may publish with depend on its client id."""
        return self.client_key != "" and self.permissions.differs_by_client(self.known_user, exchange)

    def channel_closed(self, unacked: int) -> None:
        """Subtract the channel from the user's count; during a drain, add its unacked messages to `unsettled`."""
        if self.drains:
            self.unsettled += unacked
        self.usage.close(CHANNELS, self.known_user.name)
