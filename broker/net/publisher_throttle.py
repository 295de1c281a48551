"""The publisher throttle: while an alarm is raised or the store is slow, the broker does not read from publishers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Protocol

from pamqp import commands

from broker.amqp.connection import Connection
from broker.amqp.errors import shortened
from broker.core.alarms import Alarms
from broker.core.publishing.message_store import MessageStore
from broker.core.session.connection import SessionOfConnection

STORE_BACKLOG_MAX_BYTES: Final = 32 << 20  # of unwritten log records
COUNTED_SHARE: Final = 8  # above 1/COUNTED_SHARE of the limit, unwritten records are counted for each connection


class Stop:
    """The reasons why a connection is not read, as bits of an integer. An enum would be slower."""

    TURN: Final = 1
    HELD: Final = 2
    OUTPUT: Final = 4
    ALARM: Final = 8
    STORE: Final = 16
    STOPPING: Final = 32


class ThrottledConnection(Hashable, Protocol):
    """A connection as the throttle sees it. `stop_reading` and `resume_reading` add and remove a reason."""

    connection: Connection
    session: SessionOfConnection

    def stop_reading(self, reason: int) -> None: ...
    def resume_reading(self, reason: int) -> None: ...


class PublisherThrottle:
    """A throttle that blocks publishers during an alarm, and pauses those that send faster than the store writes.

    All publishers share a limit on unwritten bytes. A publisher is paused when its unwritten bytes exceed what is left
    of the limit, so one greedy publisher fills about half of it, and the rest is for others. After a commit of a store,
    its publishers are resumed unless the limit is exceeded.
    Units: `backlog_max_bytes` is the number of bytes that may wait in memory to be written to the logs,
        `counted_bytes` the backlog above which each connection's bytes are counted.
    Invariant: connections that only consume are never stopped here.
    Source: Choudhury and Hahne, Dynamic queue length thresholds for shared-memory packet switches, 1998.
    """

    def __init__(
        self,
        alarms: Alarms[ThrottledConnection],
        pending_bytes: Callable[[], int],
        backlog_max_bytes: int = STORE_BACKLOG_MAX_BYTES,
        *,
        tell_vhosts: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        """Shapes: `tell_vhosts` is called after alarms changed, with the reason, which is empty without an alarm."""
        self._alarms = alarms
        self._tell_vhosts = tell_vhosts
        self._pending_bytes = pending_bytes
        self._backlog_max_bytes = backlog_max_bytes
        self.counted_bytes = backlog_max_bytes // COUNTED_SHARE
        self._left_bytes = backlog_max_bytes
        self._publishers: set[ThrottledConnection] = set()
        self._paused: set[ThrottledConnection] = set()
        self._unwritten: dict[MessageStore, dict[ThrottledConnection, int]] = {}
        self._total_bytes: dict[MessageStore, int] = {}  # counted since the last commit
        self.watching = False  # each read must be reported to `published`: an alarm is active, or records are counted
        self._counts = False  # the backlog exceeded `counted_bytes` at the end of the last turn

    @property
    def alarmed(self) -> bool:
        return bool(self._alarms.alarms)

    @property
    def reason(self) -> str:
        """The reason in connection.blocked; empty without an alarm."""
        return self._alarms.reason

    @property
    def blocked(self) -> frozenset[ThrottledConnection]:
        return frozenset(self._alarms.blocked)

    def published(self, transport: ThrottledConnection, unwritten_bytes: int = 0) -> None:
        """Block or pause a publisher, if necessary, after a read from it.

        Units: `unwritten_bytes` is the value of the session's `unwritten_bytes` before the read.
        """
        if self._alarms.alarms:
            self._block([transport])
        if self._counts:
            appended_bytes = transport.session.unwritten_bytes - unwritten_bytes
            if appended_bytes > 0:
                self._count(transport, appended_bytes)
        self._publishers.add(transport)

    def turn(self) -> bool:
        """Resume paused publishers if possible, and return whether the next turn must check again.

        Cost: O(stores), and O(publishers) of the stores that have committed.
        """
        pending_bytes = self._pending_bytes()
        self._left_bytes = self._backlog_max_bytes - pending_bytes
        self._counts = pending_bytes > self.counted_bytes
        if not self._counts:
            self._unwritten.clear()
            self._total_bytes.clear()
        else:
            self._note_commits()
        if self._paused and pending_bytes <= self._backlog_max_bytes // 2:
            paused, self._paused = self._paused, set()
            for transport in paused:
                transport.resume_reading(Stop.STORE)
        self.watching = self._counts or self.alarmed
        return self._counts or bool(self._paused)

    def alarms_changed(self) -> None:
        """Block every publisher when an alarm was raised, and unblock them when no alarm is left."""
        self.watching = self._counts or self.alarmed
        self._tell_vhosts(self._alarms.reason)
        self._block(list(self._publishers))
        for transport in self._alarms.unblock():
            self.unblock(transport)

    def unblock(self, transport: ThrottledConnection) -> None:
        """Notify a blocked client, and resume reading from it."""
        self._alarms.forget(transport)
        _tell(transport, commands.Connection.Unblocked())
        transport.resume_reading(Stop.ALARM)

    def forget(self, transport: ThrottledConnection) -> None:
        """Remove a closed connection."""
        self._publishers.discard(transport)
        self._paused.discard(transport)
        for bytes_of in self._unwritten.values():
            bytes_of.pop(transport, None)
        self._alarms.forget(transport)

    def _count(self, transport: ThrottledConnection, appended_bytes: int) -> None:
        """Count the bytes that a publisher added, and pause it if its count exceeds what is left of the limit."""
        vhost = transport.session.vhost
        assert vhost is not None
        bytes_of = self._unwritten.setdefault(vhost.store, {})
        counted_bytes = bytes_of[transport] = bytes_of.get(transport, 0) + appended_bytes
        self._total_bytes[vhost.store] = self._total_bytes.get(vhost.store, 0) + appended_bytes
        self._left_bytes -= appended_bytes
        if counted_bytes > self._left_bytes and transport not in self._paused:
            self._paused.add(transport)
            transport.stop_reading(Stop.STORE)

    def _note_commits(self) -> None:
        """Forget the counts of stores that have committed since the last turn; resume their publishers if possible."""
        taken = [store for store, total_bytes in self._total_bytes.items() if store.unwritten_bytes < total_bytes]
        for store in taken:
            del self._total_bytes[store]
            publishers = self._unwritten.pop(store)
            if self._left_bytes > 0:
                resumed = [transport for transport in publishers if transport in self._paused]
                self._paused.difference_update(resumed)
                for transport in resumed:
                    transport.resume_reading(Stop.STORE)

    def _block(self, publishers: list[ThrottledConnection]) -> None:
        """Block and notify publishers, except those that are closing or whose publishes are refused instead.

        Source: RabbitMQ, connection.blocked.
        """
        readable = [one for one in publishers if one.session.blocked_max_s != 0 and not one.connection.closing]
        for transport in self._alarms.block(readable):
            transport.session.warn("connection.blocked", reason=self._alarms.reason)
            _tell(transport, commands.Connection.Blocked(shortened(self._alarms.reason)))
            transport.stop_reading(Stop.ALARM)


def _tell(transport: ThrottledConnection, method: commands.Connection.Blocked | commands.Connection.Unblocked) -> None:
    """Notify a client that supports it, unless the connection is closing: nothing may follow connection.close."""
    connection = transport.connection
    if connection.has_capability("connection.blocked") and not connection.closing:
        connection.send(0, method)
