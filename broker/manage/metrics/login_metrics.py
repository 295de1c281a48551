"""The metrics of logins, by protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from broker.manage.metrics.metric import COUNTER, Family, Metric

if TYPE_CHECKING:
    from broker.core.auth.login_counts import LoginCount
    from broker.core.auth.logins import Logins
    from broker.manage.metrics.metric import Labels

__all__ = ["LOGIN_FAMILIES", "LoginReading", "login_readings"]


class LoginReading:
    """The logins over one protocol at the moment of a scrape."""

    __slots__ = ("count", "labels")

    def __init__(self, protocol: str, count: LoginCount) -> None:
        self.count = count
        self.labels: Labels = (("protocol", protocol),)


def login_readings(logins: Logins) -> Iterator[LoginReading]:
    """Yield the protocols over which somebody has tried to log in."""
    for protocol, count in sorted(logins.counts.by_protocol.items()):
        yield LoginReading(protocol, count)


LOGIN_FAMILIES: Final[tuple[Family[LoginReading], ...]] = (
    Family(
        "auth_attempt_metrics",
        (
            Metric("auth_attempts_total", COUNTER, "Logins tried", lambda r: r.count.succeeded + r.count.failed),
            Metric("auth_attempts_succeeded_total", COUNTER, "Logins that succeeded", lambda r: r.count.succeeded),
            Metric("auth_attempts_failed_total", COUNTER, "Logins that failed", lambda r: r.count.failed),
        ),
    ),
)
