"""The metrics of an exchange, and those that RabbitMQ says of a cluster: names and bindings of exchanges, vhosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from broker.manage.metrics.metric import Family, counter, gauge

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.core.vhost import Vhost
    from broker.manage.metrics.metric import Labels
    from broker.routing.exchange import Exchange

__all__ = [
    "BINDING_FAMILIES",
    "EXCHANGE_FAMILIES",
    "VHOST_FAMILIES",
    "ExchangeReading",
    "NamedExchange",
    "VhostReading",
    "exchange_readings",
    "named_exchanges",
    "vhost_readings",
]


class ExchangeReading:
    """An exchange at the moment of a scrape."""

    __slots__ = ("exchange", "labels")

    def __init__(self, vhost: str, exchange: Exchange) -> None:
        self.exchange = exchange
        self.labels: Labels = (("vhost", vhost), ("exchange", exchange.name))


class NamedExchange:
    """An exchange as the metrics of a cluster name it."""

    __slots__ = ("exchange", "labels")

    def __init__(self, vhost: str, exchange: Exchange) -> None:
        self.exchange = exchange
        self.labels: Labels = (("vhost", vhost), ("exchange", exchange.name), ("type", exchange.type))


class VhostReading:
    """A vhost at the moment of a scrape."""

    __slots__ = ("labels", "runs")

    def __init__(self, name: str, *, runs: bool) -> None:
        self.labels: Labels = (("vhost", name),)
        self.runs = runs


def exchange_readings(vhosts: Iterable[Vhost]) -> Iterator[ExchangeReading]:
    """Yield the exchanges of some vhosts."""
    for vhost in vhosts:
        for exchange in list(vhost.exchanges.values()):
            yield ExchangeReading(vhost.name, exchange)


def named_exchanges(vhosts: Iterable[Vhost]) -> Iterator[NamedExchange]:
    """Yield the exchanges that have a name, without internal ones."""
    for vhost in vhosts:
        for exchange in list(vhost.exchanges.values()):
            if exchange.name and not exchange.internal:
                yield NamedExchange(vhost.name, exchange)


def vhost_readings(administration: Administration) -> list[VhostReading]:
    """Return all vhosts, those that are down too."""
    down = administration.vhosts.offline
    return [VhostReading(name, runs=name not in down) for name in administration.vhost_names]


EXCHANGE_FAMILIES: Final[tuple[Family[ExchangeReading], ...]] = (
    Family(
        "exchange_metrics",
        (
            counter(
                "exchange_messages_published_total",
                "Messages published to an exchange",
                lambda r: r.exchange.tally.publish_in,
                lambda whole: whole.messages.publish,
            ),
        ),
    ),
)
BINDING_FAMILIES: Final[tuple[Family[NamedExchange], ...]] = (
    Family(
        "exchange_bindings",
        (gauge("exchange_bindings", "Bindings of an exchange", lambda r: r.exchange.binding_count),),
    ),
    Family(
        "exchange_names",
        (gauge("exchange_name", "1 for each exchange", lambda _reading: 1),),
    ),
)
VHOST_FAMILIES: Final[tuple[Family[VhostReading], ...]] = (
    Family(
        "vhost_status",
        (gauge("vhost_status", "Whether a vhost runs: 1 or 0", lambda r: int(r.runs)),),
    ),
)
