"""The client of a connection, as its channels see it: its user, its rights, and its method budget."""

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

BUDGET_UNITS: Final = 200  # of about ten microseconds: two milliseconds of one connection


class MethodBudget:
    """Hold a connection until the next turn of the loop each time its methods have used up the budget. The bytes read
    in a turn limit the cost of publishes, but not of methods: one of fifty bytes may cost as much as many publishes,
    and one read may return thousands. The budget limits their cost.
    Units: about ten microseconds.
    """

    __slots__ = ("_connection", "_deadlines", "_left")

    def __init__(self, connection: Connection, deadlines: Deadlines) -> None:
        self._connection = connection
        self._deadlines = deadlines
        self._left = BUDGET_UNITS

    def spend(self, units: int) -> None:
        """Count the cost of a method; when the budget is used up, hold the connection until the next turn."""
        self._left -= units
        if self._left <= 0 and not self._connection.held:
            self._connection.hold()
            self._deadlines.next_turn(self, self._renew)

    def _renew(self) -> None:
        self._left = BUDGET_UNITS
        self._connection.release()


class SessionClient:
    """The client of one connection, and the owner of its exclusive queues.

    Invariant: ``user`` is set once authenticated, ``method_budget`` and ``publish_share`` once a vhost was opened; no
        channel is opened before. ``publishing`` is set by the first publish. During ``drains``, ``unsettled`` counts
        the unacked messages of closed channels. ``patient`` is set for a client within this process and for an overlay
        link: an alarm blocks it for as long as it lasts, whatever the vhost's limit is. ``postponed`` has the
        postponements of the running method, in order: a connection postpones one method at a time. ``client_key`` is an
        MQTT client's id as encoded in routing keys, otherwise empty.
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
        """The logged-in user."""
        assert self.user is not None
        return self.user

    def user_changed(self, user: User) -> None:
        """Replace the user by one with changed tags."""
        self.user = user

    def identify(self, client_key: str) -> None:
        """Set the id of an MQTT client, as encoded in routing keys."""
        self.client_key = client_key

    def publishes(self) -> None:
        """Handle the first publish: from now on an alarm blocks the connection."""
        self.publishing = True

    def be_patient(self) -> None:
        """Let an alarm block the connection for as long as it lasts."""
        self.patient = True

    def check(self, resource: Resource, kind: Kind) -> None:
        """Check a right of the user to a resource. Raises: 403."""
        self.permissions.check(self.known_user, resource, kind)

    def check_new(self, resource: Resource, arguments: Mapping[str, Any]) -> None:
        """Check the rights to the exchange that the arguments of a new resource name. Raises: 403, 406."""
        self.permissions.check_new(self.known_user, resource, arguments)

    def check_any(self, resource: Resource) -> None:
        """Check that the user has any right to a resource. Raises: 403."""
        self.permissions.check_any(self.known_user, resource)

    def check_source(self, source: Resource, exchange: Exchange | None, key: str) -> None:
        """Check the rights to bind something to an exchange with a key. Raises: 403."""
        self.permissions.check_source(self.known_user, source, exchange, key, self.client_key)

    def narrows_topics(self, exchange: Resource) -> bool:
        """Return whether each routing key at a topic exchange must be checked."""
        return self.permissions.narrows_topics(self.known_user, exchange)

    def check_topic(self, exchange: Resource, key: str, kind: Kind) -> None:
        """Check the right to a routing key of a topic exchange. Raises: 403."""
        self.permissions.check_topic(self.known_user, exchange, key, kind, self.client_key)

    def has_own_rights(self, exchange: Resource) -> bool:
        """Return whether other clients of the user may publish with other routing keys."""
        return self.client_key != "" and self.permissions.differs_by_client(self.known_user, exchange)

    def channel_closed(self, unacked: int) -> None:
        """Subtract one channel from the user's count; during a drain, add its unacked messages to ``unsettled``."""
        if self.drains:
            self.unsettled += unacked
        self.usage.close(CHANNELS, self.known_user.name)
