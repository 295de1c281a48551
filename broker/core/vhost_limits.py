"""The limits of a vhost: exchanges, queues, bindings, connections, and how long an alarm may block a connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.amqp.errors import ChannelError, ConnectionFault
from broker.core.auth.user_limits import CONNECTIONS, checked_limits, limit_in
from broker.core.names import Resource

QUEUES: Final = "max-queues"
BLOCKED_S: Final = "max-blocked-seconds"


@dataclass(slots=True)
class VhostLimits:
    """The limits of one vhost. Existing objects that exceed a limit are kept. The broker's own exchanges and queues are
    not counted.
    Shapes: an operator sets ``own_queues_max``, ``connections_max`` and ``blocked_max_s`` for the vhost; they are None
        if there is no limit. The others come from the settings, for all vhosts.
    Units: ``blocked_max_s`` is how long an alarm may block a connection before the broker closes it. With 0, the broker
        refuses publishes instead of blocking connections.
    """

    exchanges_max: int = 100_000
    queues_max: int = 100_000
    bindings_max: int = 10_000_000
    transient_shared_queues: bool = True
    in_cluster: bool = False
    own_queues_max: int | None = None
    connections_max: int | None = None
    blocked_max_s: int | None = None

    def copy_from(self, limits: VhostLimits) -> None:
        self.apply_settings(limits)
        self.own_queues_max = limits.own_queues_max
        self.connections_max = limits.connections_max
        self.blocked_max_s = limits.blocked_max_s

    def apply_settings(self, limits: VhostLimits) -> None:
        """Apply the limits of changed settings; the vhost's own limits do not change."""
        self.exchanges_max = limits.exchanges_max
        self.queues_max = limits.queues_max
        self.bindings_max = limits.bindings_max
        self.transient_shared_queues = limits.transient_shared_queues
        self.in_cluster = limits.in_cluster

    def set_own(self, table: Mapping[str, int]) -> None:
        """Replace the limits that an operator has set for this vhost."""
        self.own_queues_max = limit_in(table, QUEUES)
        self.connections_max = limit_in(table, CONNECTIONS)
        self.blocked_max_s = limit_in(table, BLOCKED_S)

    def check_connections(self, vhost: str, user: str, count: int) -> None:
        """Check that one more connection is allowed. Raises: 530, with RabbitMQ's text."""
        limit = self.connections_max
        if limit is not None and count >= limit:
            raise ConnectionFault(
                530, f"access to vhost '{vhost}' refused for user '{user}': connection limit ({limit}) is reached"
            )

    def check_exchanges(self, resource: Resource, count: int) -> None:
        """Check that one more exchange is allowed. Raises: 406."""
        if count >= self.exchanges_max:
            raise _reached(f"cannot declare exchange '{resource.name}': exchange", resource.vhost, self.exchanges_max)

    @property
    def queue_limit(self) -> int:
        """The number of queues that clients may declare."""
        own = self.own_queues_max
        return self.queues_max if own is None else min(own, self.queues_max)

    def check_queues(self, resource: Resource, count: int) -> None:
        """Check that one more queue is allowed. Raises: 406, with the text of RabbitMQ's max-queues."""
        if count >= self.queue_limit:
            raise _reached(f"cannot declare queue '{resource.name}': queue", resource.vhost, self.queue_limit)

    def check_shared(self, *, durable: bool, exclusive: bool) -> None:
        """Refuse a queue that is neither durable nor exclusive if the settings do not permit it, as in RabbitMQ 4.3.

        Raises: 541, which closes the connection.
        """
        if not (durable or exclusive or self.transient_shared_queues):
            raise ConnectionFault(
                541,
                "Feature `transient_nonexcl_queues` is deprecated. Its use is not permitted per the configuration: "
                "limits.transient_shared_queues = false",
            )

    def check_alone(self, resource: Resource, what: str) -> None:
        """Refuse a feature that a cluster does not support. Raises: 406."""
        if self.in_cluster:
            raise ChannelError(406, f"cannot declare {resource}: a cluster has no {what}")

    def check_bindings(self, resource: Resource, count: int) -> None:
        """Check that one more binding is allowed. Raises: 406."""
        if count >= self.bindings_max:
            raise _reached(f"cannot bind {resource.kind} '{resource.name}': binding", resource.vhost, self.bindings_max)


def vhost_limits_table(table: Any) -> dict[str, int]:
    """Return the limits of a vhost from a table in definitions. Raises: ValueError with the reason."""
    return checked_limits(table, (CONNECTIONS, QUEUES, BLOCKED_S))


def _reached(what: str, vhost: str, limit: int) -> ChannelError:
    return ChannelError(406, f"{what} limit in vhost '{vhost}' ({limit}) is reached")
