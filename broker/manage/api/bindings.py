"""GET /api/bindings: which keys lead from which exchange to which queue or exchange."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, unquote_plus

from starlette.responses import Response

from broker.core.definitions.export import json_table
from broker.core.queue.queue import Queue
from broker.manage.answers import json_answer
from broker.manage.api.binding_key import properties_key
from broker.manage.api.visible import visible_vhosts
from broker.manage.api_route import ApiRoute
from broker.manage.columns import Row
from broker.manage.listing import Listing, listed
from broker.manage.needs import Needs
from broker.manage.refusal import HttpRefused, not_found

if TYPE_CHECKING:
    from broker.core.vhost import Vhost
    from broker.manage.call import Call
    from broker.routing.bundle import Bundle
    from broker.routing.exchange import Exchange

__all__ = [
    "DEFAULT_EXCHANGE",
    "binding_of",
    "binding_routes",
    "bindings_from",
    "bindings_to",
    "ends_of",
    "exchange_named",
]

DEFAULT_EXCHANGE: Final = "amq.default"  # its name in paths, where the empty name cannot be
Listed = tuple["Vhost", str, Any, str, Mapping[str, Any]]  # vhost, source, destination, key, arguments


def binding_routes() -> list[ApiRoute]:
    """Return the routes."""
    between = "/api/bindings/{vhost}/e/{exchange}"
    return [
        ApiRoute("GET", "/api/bindings", Needs.MANAGEMENT, list_bindings),
        ApiRoute("GET", "/api/bindings/{vhost}", Needs.MANAGEMENT, list_bindings),
        ApiRoute("GET", between + "/q/{queue}", Needs.MANAGEMENT, list_between),
        ApiRoute("GET", between + "/e/{destination}", Needs.MANAGEMENT, list_between),
        ApiRoute("GET", between + "/q/{queue}/{properties}", Needs.MANAGEMENT, show_binding),
        ApiRoute("GET", between + "/e/{destination}/{properties}", Needs.MANAGEMENT, show_binding),
    ]


def exchange_named(vhost: Vhost, name: str) -> Exchange:
    """Return the exchange of a path. Raises: HttpRefused 404."""
    found = vhost.exchanges.get("" if name == DEFAULT_EXCHANGE else name)
    if found is None:
        raise not_found()
    return found


def ends_of(call: Call) -> tuple[Vhost, Exchange, Any]:
    """Return the vhost, the source and the destination that the path names. Raises: HttpRefused 404, 401."""
    vhost, words = call.vhost(), call.words
    source = exchange_named(vhost, words["exchange"])
    destination = vhost.queues.get(words["queue"]) if "queue" in words else exchange_named(vhost, words["destination"])
    if destination is None:
        raise not_found()
    return vhost, source, destination


def binding_of(call: Call) -> tuple[Vhost, Exchange, Any, Listed]:
    """Return the vhost, both ends and the binding that the path names. Raises: HttpRefused 404, 401.

    The properties key may be quoted once more for the path, as rabbitmqadmin does, or be put there as it is.
    """
    vhost, source, destination = ends_of(call)
    asked = call.words["properties"]
    quoted_less: Listed | None = None
    for one in _between(vhost, source, destination):
        key = properties_key(one[3], one[4])
        if key == asked:
            return vhost, source, destination, one
        if asked in {unquote(key), unquote_plus(key)}:
            quoted_less = one
    if quoted_less is None:
        raise not_found()
    return vhost, source, destination, quoted_less


async def list_bindings(call: Call) -> Response:
    """Answer with the bindings of the vhosts."""
    return await _listed(call, (one for vhost in visible_vhosts(call) for one in _of_vhost(vhost)))


async def list_between(call: Call) -> Response:
    """Answer with the bindings between two ends; there are none where an end does not exist, as in RabbitMQ."""
    call.vhost()
    try:
        found = _between(*ends_of(call))
    except HttpRefused:
        return json_answer([])
    return await _listed(call, found)


async def show_binding(call: Call) -> Response:
    """Answer with one binding."""
    return json_answer(binding_row(binding_of(call)[3]))


async def bindings_to(call: Call, vhost: Vhost, destination: Queue | Exchange) -> Response:
    """Answer with the bindings to a queue or an exchange."""
    return await _listed(call, _arriving(vhost, destination))


async def bindings_from(call: Call, vhost: Vhost, source: Exchange) -> Response:
    """Answer with the bindings from an exchange."""
    return await _listed(call, _leaving(vhost, source))


async def _listed(call: Call, found: Iterator[Listed]) -> Response:
    return await listed(
        call.query,
        Listing(found, names=lambda one: (one[1], one[2].name, one[3]), whole=binding_row, order=None),
    )


def binding_row(listed: Listed) -> Row:
    """Return the row of a binding."""
    vhost, source, destination, key, arguments = listed
    return {
        "arguments": json_table(arguments),
        "destination": destination.name,
        "destination_type": "queue" if isinstance(destination, Queue) else "exchange",
        "properties_key": properties_key(key, arguments),
        "routing_key": key,
        "source": source,
        "vhost": vhost.name,
    }


def _of_vhost(vhost: Vhost) -> Iterator[Listed]:
    """Yield the bindings of a vhost. What changes between two of them may or may not be among them."""
    for exchange in list(vhost.exchanges.values()):
        yield from _leaving(vhost, exchange)


def _leaving(vhost: Vhost, source: Exchange) -> Iterator[Listed]:
    """Yield the bindings from an exchange; every queue that clients may use is bound to the default exchange."""
    if source.name == "":
        for queue in list(vhost.queues.values()):
            yield from _by_name(vhost, queue)
    for bundle in list(source.bundles.values()):
        yield from _bundled(vhost, bundle)


def _arriving(vhost: Vhost, destination: Queue | Exchange) -> Iterator[Listed]:
    yield from _by_name(vhost, destination)
    for source, bundle in list(destination.incoming.items()):
        if not source.deleted:
            yield from _bundled(vhost, bundle)


def _between(vhost: Vhost, source: Exchange, destination: Queue | Exchange) -> Iterator[Listed]:
    if source.name == "":
        yield from _by_name(vhost, destination)
    bundle = source.bundles.get(destination)
    if bundle is not None:
        yield from _bundled(vhost, bundle)


def _bundled(vhost: Vhost, bundle: Bundle[Exchange]) -> Iterator[Listed]:
    """Yield the bindings between two ends. Cost: O(those) references at once."""
    source, destination = bundle.source.name, bundle.destination
    for key, arguments in list(bundle.items()):
        yield vhost, source, destination, key, arguments


def _by_name(vhost: Vhost, destination: Queue | Exchange) -> Iterator[Listed]:
    """Yield the binding of a queue to the default exchange; those of taps and of the overlay have none."""
    if isinstance(destination, Queue) and not (destination.is_tap or destination.is_stream):
        yield vhost, "", destination, destination.name, {}
