"""The clients of a node of a cluster: blocked while the database is away, closed when the node was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.core.alarms import DATABASE
from broker.event_log import get_logger

if TYPE_CHECKING:
    from broker.core.alarms import Alarms
    from broker.net.listener import Listener
    from broker.net.publisher_throttle import PublisherThrottle, ThrottledConnection

__all__ = ["ClusterClients"]

_log = get_logger()


class ClusterClients:
    """All connections of the listener."""

    def __init__(self, listener: Listener, alarms: Alarms[ThrottledConnection], throttle: PublisherThrottle) -> None:
        self._listener = listener
        self._alarms = alarms
        self._throttle = throttle

    @property
    def count(self) -> int:
        """How many connections there are."""
        return len(self._listener.transports)

    def block(self, reason: str) -> None:
        """Block those that publish, and tell them why."""
        _log.warning("alarm.raised", **self._alarms.raise_outage(reason).fields())
        self._throttle.alarms_changed()

    def unblock(self) -> None:
        """Let them publish again."""
        self._alarms.clear_outage()
        _log.info("alarm.cleared", kind=DATABASE)
        self._throttle.alarms_changed()

    def drop(self, reason: str) -> None:
        """Close all connections with 320; what waits to be written to them is not: other nodes may have it by now."""
        for transport in list(self._listener.transports):
            transport.drop(reason)
