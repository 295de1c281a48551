"""The metrics of a connection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from broker.manage.metrics.metric import Family, counter, gauge
from broker.operations.rows import user_name, vhost_name

if TYPE_CHECKING:
    from broker.core.session.connection import SessionOfConnection

__all__ = ["CONNECTION_FAMILIES", "ConnectionReading", "connection_readings"]


class ConnectionReading:
    """A connection at the moment of a scrape."""

    __slots__ = ("connection", "labels")

    def __init__(self, session: SessionOfConnection) -> None:
        self.connection = session.connection
        self.labels = (("connection", session.name), ("vhost", vhost_name(session)), ("user", user_name(session)))


def connection_readings(sessions: Iterable[SessionOfConnection]) -> Iterator[ConnectionReading]:
    """Yield the connections."""
    for session in sessions:
        yield ConnectionReading(session)


CONNECTION_FAMILIES: Final[tuple[Family[ConnectionReading], ...]] = (
    Family(
        "connection_coarse_metrics",
        (
            counter(
                "connection_incoming_bytes_total",
                "Bytes received",
                lambda r: r.connection.received,
                lambda whole: whole.received_bytes,
            ),
            counter(
                "connection_outgoing_bytes_total",
                "Bytes sent",
                lambda r: r.connection.sent,
                lambda whole: whole.sent_bytes,
            ),
        ),
    ),
    Family(
        "connection_metrics",
        (gauge("connection_channels", "Channels on a connection", lambda r: len(r.connection.channels)),),
    ),
)
