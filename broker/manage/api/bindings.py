"""Routes for bindings."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote, unquote_plus
from zlib import crc32

from broker.amqp.lenient_methods import BindAny, BindExchangeAny, UnbindAny, UnbindExchangeAny
from broker.core.definitions.export import json_table
from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost
from broker.manage.acting import acting
from broker.manage.answers import Response, json_answer
from broker.manage.call import ApiRoute, Call, Needs, visible_vhosts
from broker.manage.listing import Listing, listed
from broker.manage.refusal import HttpRefused, not_found
from broker.operations.rows import (
    BindingEnds,
    Row,
    binding_row,
    bindings_from,
    bindings_of,
    bundled_bindings,
    default_binding,
)
from broker.routing.exchange import Exchange

BETWEEN: Final = "/api/bindings/{vhost}/e/{exchange}"
DEFAULT_EXCHANGE: Final = "amq.default"  # its name in paths, because a path cannot contain an empty word


def exchange_named(vhost: Vhost, name: str) -> Exchange:
    """Return the exchange of a path. Raises: HttpRefused 404."""
    found = vhost.exchanges.get("" if name == DEFAULT_EXCHANGE else name)
    if found is None:
        raise not_found()
    return found


def ends_of(call: Call) -> tuple[Vhost, Exchange, Any]:
    """Return the vhost, the source and the destination that the path names. Raises: HttpRefused 404, 401, 503."""
    vhost = call.vhost()
    return vhost, exchange_named(vhost, call.words["exchange"]), _destination(call, vhost, "destination")


def _destination(call: Call, vhost: Vhost, exchange: str) -> Any:
    """Return the queue that the path names, or the exchange that its word `exchange` names. Raises: HttpRefused 404."""
    if "queue" not in call.words:
        return exchange_named(vhost, call.words[exchange])
    found = vhost.queues.get(call.words["queue"])
    if found is None:
        raise not_found()
    return found


def binding_of(call: Call) -> tuple[Vhost, Exchange, Any, BindingEnds]:
    """Return the vhost, both ends and the binding that the path names. Raises: HttpRefused 404, 401, 503.

    A client can quote the properties key, as rabbitmqadmin does, or send it as it is.
    """
    vhost, source, destination = ends_of(call)
    wanted = call.words["properties"]
    unquoted: BindingEnds | None = None
    for one in _between(vhost, source, destination):
        key = properties_key(one[3], one[4])
        if key == wanted:
            return vhost, source, destination, one
        if wanted in {unquote(key), unquote_plus(key)}:
            unquoted = one
    if unquoted is None:
        raise not_found()
    return vhost, source, destination, unquoted


async def list_bindings(call: Call) -> Response:
    """Answer with the bindings of the visible vhosts."""
    return await _listed(call, (one for vhost in visible_vhosts(call) for one in bindings_of(vhost)))


async def list_between(call: Call) -> Response:
    """Answer with the bindings between two ends. The list is empty if an end does not exist, as in RabbitMQ."""
    call.vhost()
    try:
        found = _between(*ends_of(call))
    except HttpRefused:
        return json_answer([])
    return await _listed(call, found)


async def show_binding(call: Call) -> Response:
    """Answer with one binding."""
    return json_answer(whole(binding_of(call)[3]))


async def list_to(call: Call) -> Response:
    """Answer with the bindings to a queue or an exchange."""
    vhost = call.vhost()
    return await _listed(call, _to(vhost, _destination(call, vhost, "exchange")))


async def list_from(call: Call) -> Response:
    """Answer with the bindings from an exchange."""
    vhost = call.vhost()
    return await _listed(call, bindings_from(vhost, exchange_named(vhost, call.words["exchange"])))


async def _listed(call: Call, found: Iterator[BindingEnds]) -> Response:
    return await listed(
        call.query,
        Listing(found, names=lambda one: (one[1], one[2].name, one[3]), whole=whole, order=None),
    )


def whole(ends: BindingEnds) -> Row:
    """Return the row of a binding."""
    return binding_row(ends, properties_key(ends[3], ends[4]))


def _to(vhost: Vhost, destination: Queue | Exchange) -> Iterator[BindingEnds]:
    yield from default_binding(vhost, destination)
    for source, bundle in list(destination.incoming.items()):
        if not source.deleted:
            yield from bundled_bindings(vhost, bundle)


def _between(vhost: Vhost, source: Exchange, destination: Queue | Exchange) -> Iterator[BindingEnds]:
    if source.name == "":
        yield from default_binding(vhost, destination)
    bundle = source.bundles.get(destination)
    if bundle is not None:
        yield from bundled_bindings(vhost, bundle)


def properties_key(key: str, arguments: Mapping[str, Any]) -> str:
    """Return the properties_key of a binding: its routing key and a digest of its arguments, or `~` if it has neither.

    Source: rabbit_mgmt_format:pack_binding_props, with another digest.
    """
    quoted = quote_plus(key, safe="").replace("~", "%7E")
    if not arguments:
        return quoted or "~"
    written = json.dumps(json_table(arguments), sort_keys=True).encode()
    return f"{quoted}~{urlsafe_b64encode(crc32(written).to_bytes(4)).decode().rstrip('=')}"


async def bind(call: Call, *, kind: Any) -> Response:
    """Bind a queue or an exchange; the answer is the same if an equal binding exists."""
    vhost, fields = call.vhost(), await call.fields()
    key, arguments = fields.text("routing_key", ""), fields.arguments("arguments")
    async with acting(call, vhost.name) as client:
        await client.call(kind(**_ends(call), routing_key=key, arguments=arguments))
    destination = call.words["queue" if "queue" in call.words else "destination"]
    location = f"{quote(destination, safe='')}/{quote(properties_key(key, arguments), safe='')}"
    return Response(status_code=201, headers={"Location": location})


async def unbind(call: Call, *, kind: Any) -> None:
    """Remove the binding that the path names."""
    vhost, _source, _destination, (_vhost, _name, _end, key, arguments) = binding_of(call)
    async with acting(call, vhost.name) as client:
        await client.call(kind(**_ends(call), routing_key=key, arguments=dict(arguments)))


def _ends(call: Call) -> dict[str, str]:
    """Return the ends of the binding in the path as arguments of an AMQP method."""
    words = {name: "" if word == DEFAULT_EXCHANGE else word for name, word in call.words.items()}
    if "queue" in words:
        return {"exchange": words["exchange"], "queue": call.words["queue"]}
    return {"source": words["exchange"], "destination": words["destination"]}


ROUTES: Final = (
    ApiRoute("GET", "/api/bindings", Needs.MANAGEMENT, list_bindings),
    ApiRoute("GET", "/api/bindings/{vhost}", Needs.MANAGEMENT, list_bindings),
    ApiRoute("GET", "/api/exchanges/{vhost}/{exchange}/bindings/source", Needs.MANAGEMENT, list_from),
    ApiRoute("GET", "/api/exchanges/{vhost}/{exchange}/bindings/destination", Needs.MANAGEMENT, list_to),
    ApiRoute("GET", "/api/queues/{vhost}/{queue}/bindings", Needs.MANAGEMENT, list_to),
    *(
        route
        for path, bind_method, unbind_method in (
            (f"{BETWEEN}/q/{{queue}}", BindAny, UnbindAny),
            (f"{BETWEEN}/e/{{destination}}", BindExchangeAny, UnbindExchangeAny),
        )
        for route in (
            ApiRoute("GET", path, Needs.MANAGEMENT, list_between),
            ApiRoute("GET", f"{path}/{{properties}}", Needs.MANAGEMENT, show_binding),
            ApiRoute("POST", path, Needs.MANAGEMENT, partial(bind, kind=bind_method)),
            ApiRoute("DELETE", f"{path}/{{properties}}", Needs.MANAGEMENT, partial(unbind, kind=unbind_method)),
        )
    ),
)
