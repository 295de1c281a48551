"""Tests of routes: the queues that a message would reach, the matching bindings, and the indexes that find these."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from broker.administration.slices import pause
from broker.amqp.content_header import HeaderFields
from broker.core.definitions.export import json_table
from broker.core.names import is_short_text
from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost
from broker.manage.answers import Response, json_answer
from broker.manage.api.bindings import exchange_named, properties_key
from broker.manage.api.exchanges import header_of
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.refusal import bad_request
from broker.routing.exchange import Exchange

MATCHES_MAX: Final = 1000  # bindings in one answer; all are counted
BINDINGS_AT_ONCE: Final = 500  # bindings compared with the message in one turn of the loop
INDEXES: Final = {
    "direct": "routing keys",
    "fanout": "all bindings",
    "headers": "headers, one by one",
    "x-consistent-hash": "hash ring",
    "x-modulus-hash": "hash of the key",
    "x-random": "all bindings",
    "x-local-random": "all bindings",
    "x-recent-history": "all bindings",
    "x-message-deduplication": "all bindings",
}
"""The indexes of exchange types other than topic."""


async def try_route(call: Call) -> Response:
    """Answer with the route of a message with a routing key and headers, without publishing it."""
    vhost = call.vhost()
    exchange = exchange_named(vhost, call.words["exchange"])
    fields = await call.fields()
    key = fields.text("routing_key", "")
    if not is_short_text(key):
        raise bad_request("a routing key has at most 255 bytes")
    properties = fields.arguments("properties")
    if fields.has("headers"):
        properties = {**properties, "headers": fields.arguments("headers")}
    message = HeaderFields(header_of(properties, 0))
    queues = [queue for queue in vhost.router.queues(exchange, [key], message) if isinstance(queue, Queue)]
    matches = [match async for match in _matches(vhost, exchange, key, message)]
    return json_answer(
        {
            "routed": any(not queue.is_tap for queue in queues),
            "queues": [queue.name for queue in queues],
            "matches": matches[:MATCHES_MAX],
            "match_count": len(matches),
        }
    )


async def _matches(vhost: Vhost, exchange: Exchange, key: str, message: HeaderFields) -> AsyncIterator[dict[str, Any]]:
    """Yield the bindings that match the message, exchange by exchange.

    Cost: O(bindings to the reached destinations), in slices.
    """
    reached = {exchange: ""}  # for an alternate exchange, the name of the exchange whose alternate it is
    pending = [exchange]
    compared = 0
    for current in pending:  # grows during the loop
        destinations = current.match([key], message)
        for destination in destinations:
            bundle = current.bundles.get(destination)
            pairs: Sequence[tuple[str, Any]] = [] if bundle is None else list(bundle.items())
            if not current.name and isinstance(destination, Queue):
                pairs = [(key, {})]  # the implicit binding of the default exchange
            for binding_key, arguments in pairs:
                compared += 1
                if compared % BINDINGS_AT_ONCE == 0:
                    await pause()
                if current.matches(binding_key, arguments, [key], message):
                    yield _row(vhost, current, destination, binding_key, arguments, reached[current])
        further = [one for one in destinations if not isinstance(one, Queue) and one in current.onward]
        alternate = vhost.exchanges.get(current.alternate) if current.alternate else None
        if alternate is not None and not current.is_routed(destinations) and alternate not in reached:
            reached[alternate] = current.name
            pending.append(alternate)
        for one in further:
            if one not in reached:
                reached[one] = ""
                pending.append(one)


def _row(
    vhost: Vhost, source: Exchange, destination: Any, key: str, arguments: Any, alternate_of: str
) -> dict[str, Any]:
    row = {
        "source": source.name,
        "vhost": vhost.name,
        "destination": destination.name,
        "destination_type": "queue" if isinstance(destination, Queue) else "exchange",
        "routing_key": key,
        "arguments": json_table(arguments),
        "properties_key": properties_key(key, arguments),
        "exchange_type": source.type,
        "index": source.index_name or INDEXES.get(source.type, source.type),
    }
    return {**row, "alternate_of": alternate_of} if alternate_of else row


ROUTES: Final = (ApiRoute("POST", "/api/exchanges/{vhost}/{exchange}/route", Needs.MANAGEMENT, try_route),)
