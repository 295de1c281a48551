"""GET /api/exchanges: the exchanges, and the bindings that lead to and from them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import Response

from broker.core.definitions.export import json_table
from broker.manage.answers import json_answer
from broker.manage.api.bindings import bindings_from, bindings_to, exchange_named
from broker.manage.api.visible import visible_vhosts
from broker.manage.api_route import ApiRoute
from broker.manage.columns import Columns, Row
from broker.manage.listing import Listing, listed
from broker.manage.message_stats import EXCHANGE_STATS, with_rates
from broker.manage.needs import Needs
from broker.manage.sampled import Sampled

if TYPE_CHECKING:
    from broker.core.vhost import Vhost
    from broker.manage.call import Call
    from broker.manage.managed_broker import ManagedBroker
    from broker.routing.exchange import Exchange

__all__ = ["exchange_of", "exchange_routes"]

BRIEF = frozenset({"arguments", "auto_delete", "durable", "internal", "name", "type", "vhost"})
INTERNAL_USER = "rmq-internal"  # who makes what no client made, in RabbitMQ's words

Listed = tuple["Vhost", "Exchange"]


def exchange_routes() -> list[ApiRoute]:
    """Return the routes."""
    one = "/api/exchanges/{vhost}/{exchange}"
    return [
        ApiRoute("GET", "/api/exchanges", Needs.MANAGEMENT, list_exchanges),
        ApiRoute("GET", "/api/exchanges/{vhost}", Needs.MANAGEMENT, list_exchanges),
        ApiRoute("GET", one, Needs.MANAGEMENT, show_exchange),
        ApiRoute("GET", f"{one}/bindings/source", Needs.MANAGEMENT, list_leaving),
        ApiRoute("GET", f"{one}/bindings/destination", Needs.MANAGEMENT, list_arriving),
    ]


def exchange_of(call: Call) -> Listed:
    """Return the vhost and the exchange that the path names. Raises: HttpRefused 404, 401."""
    vhost = call.vhost()
    return vhost, exchange_named(vhost, call.words["exchange"])


async def list_exchanges(call: Call) -> Response:
    """Answer with a list of exchanges."""
    broker = call.broker
    vhosts = visible_vhosts(call)
    found = ((vhost, exchange) for vhost in vhosts for exchange in list(vhost.exchanges.values()))
    without_stats = call.query.get("disable_stats") == "true"
    return await listed(
        call.query,
        Listing(
            found,
            names=lambda one: (one[1].name,),
            whole=brief if without_stats else lambda one: whole(broker, one),
            order=lambda one: f"{one[0].name}\0{one[1].name}",
            brief=brief,
            brief_columns=BRIEF,
        ),
    )


async def show_exchange(call: Call) -> Response:
    """Answer with one exchange."""
    broker, (vhost, exchange) = call.broker, exchange_of(call)
    row = whole(broker, (vhost, exchange)) | {"incoming": [], "outgoing": []}
    key = _key(vhost, exchange)
    sampled = Sampled(key, EXCHANGE_STATS, len(EXCHANGE_STATS), partial(_numbers_of, broker, exchange))
    sampled.add_to(row["message_stats"], "msg_rates", EXCHANGE_STATS, call.query, broker.samples)
    columns = call.query.get("columns", "")
    return json_answer(Columns(columns).of(row) if columns else row)


async def list_leaving(call: Call) -> Response:
    """Answer with the bindings from an exchange."""
    return await bindings_from(call, *exchange_of(call))


async def list_arriving(call: Call) -> Response:
    """Answer with the bindings to an exchange."""
    return await bindings_to(call, *exchange_of(call))


def brief(listed: Listed) -> Row:
    """Return the row of an exchange without statistics."""
    vhost, exchange = listed
    return {
        "arguments": json_table(exchange.arguments),
        "auto_delete": exchange.auto_delete,
        "durable": exchange.durable,
        "internal": exchange.internal,
        "name": exchange.name,
        "type": exchange.type,
        "user_who_performed_action": INTERNAL_USER,
        "vhost": vhost.name,
    }


def whole(broker: ManagedBroker, listed: Listed) -> Row:
    """Return the row of an exchange."""
    vhost, exchange = listed
    tally = broker.statistics.exchange(exchange)
    numbers = (tally.publish_in, tally.publish_out)
    rates = broker.samples.rates.of(_key(vhost, exchange), numbers, len(numbers))
    policy = vhost.policies.for_exchange(exchange)
    row = brief(listed)
    row["message_stats"] = with_rates(EXCHANGE_STATS, numbers, rates)
    row["policy"] = None if policy is None else policy.name
    if exchange.index_name is not None:
        row["topic_index"] = exchange.index_name
    return row


def _key(vhost: Vhost, exchange: Exchange) -> Hashable:
    return "exchange", vhost.name, exchange.name


def _numbers_of(broker: ManagedBroker, exchange: Exchange) -> Sequence[int] | None:
    tally = broker.statistics.exchange(exchange)
    return None if exchange.deleted else (tally.publish_in, tally.publish_out)
