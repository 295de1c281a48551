"""The publisher throttle: alarms, and a store that lags behind, stop the reading of publishers only."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final, Protocol

from pamqp import commands

from broker.net.stop import Stop

if TYPE_CHECKING:
    from broker.amqp.connection import Connection
    from broker.core.alarms import Alarms
    from broker.core.session.connection import SessionOfConnection

__all__ = ["STORE_BACKLOG_MAX_BYTES", "PublisherThrottle", "ThrottledConnection"]

STORE_BACKLOG_MAX_BYTES: Final = 32 << 20  # unwritten log records beyond this pause the publishers


class ThrottledConnection(Hashable, Protocol):
    """A connection as the throttle sees it. `stop` and `go` add and remove a reason not to read it."""

    connection: Connection
    session: SessionOfConnection

    def stop(self, reason: int) -> None: ...
    def go(self, reason: int) -> None: ...


class PublisherThrottle:
    """Blocks publishers while an alarm is raised, and pauses them while too much waits to be written.

    Units: ``backlog_max_bytes`` is how much may wait in memory to be written to the log.
    Invariant: connections that only consume are never stopped here.
    """

    def __init__(
        self,
        alarms: Alarms[ThrottledConnection],
        pending_bytes: Callable[[], int],
        backlog_max_bytes: int = STORE_BACKLOG_MAX_BYTES,
    ) -> None:
        self._alarms = alarms
        self._pending_bytes = pending_bytes
        self._backlog_max_bytes = backlog_max_bytes
        self._publishers: set[ThrottledConnection] = set()
        self._lagging: set[ThrottledConnection] = set()
        self.watching = False  # whether `published` has to hear of each read: an alarm is active, or `_behind`
        self._behind = False  # the backlog exceeded its limit at the end of the last turn

    @property
    def alarmed(self) -> bool:
        """Whether an alarm is active."""
        return bool(self._alarms.alarms)

    @property
    def blocked(self) -> frozenset[ThrottledConnection]:
        """The connections that an alarm blocks."""
        return frozenset(self._alarms.blocked)

    def published(self, transport: ThrottledConnection) -> None:
        """Block or pause a connection that was just read and publishes, or has begun its first message."""
        if self._alarms.alarms:
            self._block([transport])
        elif self._behind:
            self._lagging.add(transport)
            transport.stop(Stop.STORE)
        self._publishers.add(transport)

    def turn(self) -> bool:
        """Resume paused publishers once the store has caught up, and return whether some still wait for that."""
        pending_bytes = self._pending_bytes()
        self._behind = pending_bytes > self._backlog_max_bytes
        if self._lagging and pending_bytes <= self._backlog_max_bytes // 2:
            lagging, self._lagging = self._lagging, set()
            for transport in lagging:
                transport.go(Stop.STORE)
        self.watching = self._behind or self.alarmed
        return self._behind or bool(self._lagging)

    def alarms_changed(self) -> None:
        """Block every publisher when an alarm was raised, and unblock them when none is left."""
        self.watching = self._behind or self.alarmed
        self._block(list(self._publishers))
        for transport in self._alarms.unblock():
            _tell(transport, commands.Connection.Unblocked())
            transport.go(Stop.ALARM)

    def forget(self, transport: ThrottledConnection) -> None:
        """Forget a closed connection."""
        self._publishers.discard(transport)
        self._lagging.discard(transport)
        self._alarms.forget(transport)

    def _block(self, publishers: list[ThrottledConnection]) -> None:
        """Block publishers that are not blocked yet and tell them why. Source: RabbitMQ, connection.blocked."""
        for transport in self._alarms.block(publishers):
            transport.session.tell_blocked(self._alarms.reason)
            _tell(transport, commands.Connection.Blocked(self._alarms.reason))
            transport.stop(Stop.ALARM)


def _tell(transport: ThrottledConnection, method: commands.Connection.Blocked | commands.Connection.Unblocked) -> None:
    """Tell a client that can be told; nothing follows connection.close."""
    connection = transport.connection
    if connection.has_capability("connection.blocked") and not connection.closing:
        connection.send(0, method)
