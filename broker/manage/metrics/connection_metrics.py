"""The metrics of a connection, and of logins by protocol."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from broker.manage.metrics.metric import COUNTER, Family, Metric, Reading, counter, gauge
from broker.operations.rows import user_name, vhost_name

if TYPE_CHECKING:
    from broker.core.auth.login_counts import LoginCount
    from broker.core.auth.logins import Logins
    from broker.core.session.connection import SessionOfConnection

__all__ = ["CONNECTION_FAMILIES", "LOGIN_FAMILIES", "connection_readings", "login_readings"]


def connection_readings(sessions: Iterable[SessionOfConnection]) -> Iterator[Reading[SessionOfConnection]]:
    """Yield the connections."""
    for session in sessions:
        names = (("connection", session.name), ("vhost", vhost_name(session)), ("user", user_name(session)))
        yield Reading(session, *names)


CONNECTION_FAMILIES: Final[tuple[Family[Reading[SessionOfConnection]], ...]] = (
    Family(
        "connection_coarse_metrics",
        (
            counter(
                "connection_incoming_bytes_total",
                "Bytes received",
                lambda r: r.of.connection.received,
                lambda whole: whole.received_bytes,
            ),
            counter(
                "connection_outgoing_bytes_total",
                "Bytes sent",
                lambda r: r.of.connection.sent,
                lambda whole: whole.sent_bytes,
            ),
        ),
    ),
    Family(
        "connection_metrics",
        (gauge("connection_channels", "Channels on a connection", lambda r: len(r.of.connection.channels)),),
    ),
)


def login_readings(logins: Logins) -> Iterator[Reading[LoginCount]]:
    """Yield the logins over each protocol by which somebody has tried."""
    for protocol, count in sorted(logins.counts.by_protocol.items()):
        yield Reading(count, ("protocol", protocol))


LOGIN_FAMILIES: Final[tuple[Family[Reading[LoginCount]], ...]] = (
    Family(
        "auth_attempt_metrics",
        (
            Metric("auth_attempts_total", COUNTER, "Logins tried", lambda r: r.of.succeeded + r.of.failed),
            Metric("auth_attempts_succeeded_total", COUNTER, "Logins that succeeded", lambda r: r.of.succeeded),
            Metric("auth_attempts_failed_total", COUNTER, "Logins that failed", lambda r: r.of.failed),
        ),
    ),
)
