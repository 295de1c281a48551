"""The metrics of an exchange, and those that RabbitMQ says of a cluster: names and bindings of exchanges, vhosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from broker.manage.metrics.metric import Family, Reading, counter, gauge

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.core.vhost import Vhost
    from broker.routing.exchange import Exchange

__all__ = [
    "BINDING_FAMILIES",
    "EXCHANGE_FAMILIES",
    "VHOST_FAMILIES",
    "exchange_readings",
    "named_exchanges",
    "vhost_readings",
]


def exchange_readings(vhosts: Iterable[Vhost]) -> Iterator[Reading[Exchange]]:
    """Yield the exchanges of some vhosts."""
    for vhost in vhosts:
        for exchange in list(vhost.exchanges.values()):
            yield Reading(exchange, ("vhost", vhost.name), ("exchange", exchange.name))


def named_exchanges(vhosts: Iterable[Vhost]) -> Iterator[Reading[Exchange]]:
    """Yield the exchanges that have a name, without internal ones, as the metrics of a cluster name them."""
    for reading in exchange_readings(vhosts):
        if reading.of.name and not reading.of.internal:
            yield Reading(reading.of, *reading.labels, ("type", reading.of.type))


def vhost_readings(administration: Administration) -> list[Reading[bool]]:
    """Return whether each vhost runs."""
    down = administration.vhosts.offline
    return [Reading(name not in down, ("vhost", name)) for name in administration.vhost_names]


EXCHANGE_FAMILIES: Final[tuple[Family[Reading[Exchange]], ...]] = (
    Family(
        "exchange_metrics",
        (
            counter(
                "exchange_messages_published_total",
                "Messages published to an exchange",
                lambda r: r.of.tally.publish_in,
                lambda whole: whole.messages.publish,
            ),
        ),
    ),
)
BINDING_FAMILIES: Final[tuple[Family[Reading[Exchange]], ...]] = (
    Family(
        "exchange_bindings",
        (gauge("exchange_bindings", "Bindings of an exchange", lambda r: r.of.binding_count),),
    ),
    Family(
        "exchange_names",
        (gauge("exchange_name", "1 for each exchange", lambda _reading: 1),),
    ),
)
VHOST_FAMILIES: Final[tuple[Family[Reading[bool]], ...]] = (
    Family(
        "vhost_status",
        (gauge("vhost_status", "Whether a vhost runs: 1 or 0", lambda r: int(r.of)),),
    ),
)
