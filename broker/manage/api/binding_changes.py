"""Bindings made and removed, as the caller."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from starlette.responses import Response

from broker.amqp.lenient_methods import BindAny, BindExchangeAny, UnbindAny, UnbindExchangeAny
from broker.manage.acting import acting
from broker.manage.answers import no_content
from broker.manage.api.binding_key import properties_key
from broker.manage.api.bindings import DEFAULT_EXCHANGE, binding_of
from broker.manage.api_route import ApiRoute
from broker.manage.body_fields import table
from broker.manage.needs import Needs

if TYPE_CHECKING:
    from broker.manage.call import Call

__all__ = ["binding_change_routes"]

BETWEEN: Final = "/api/bindings/{vhost}/e/{exchange}"


def binding_change_routes() -> list[ApiRoute]:
    """Return the routes."""
    routes = []
    for path, makes, removes in (
        (f"{BETWEEN}/q/{{queue}}", BindAny, UnbindAny),
        (f"{BETWEEN}/e/{{destination}}", BindExchangeAny, UnbindExchangeAny),
    ):
        routes += [
            ApiRoute("POST", path, Needs.MANAGEMENT, partial(bind, kind=makes)),
            ApiRoute("DELETE", f"{path}/{{properties}}", Needs.MANAGEMENT, partial(unbind, kind=removes)),
        ]
    return routes


async def bind(call: Call, *, kind: Any) -> Response:
    """Bind a queue or an exchange; a binding that exists is made again without an effect."""
    vhost, fields = call.vhost(), await call.fields()
    key, arguments = fields.text("routing_key", ""), table(fields, "arguments")
    async with acting(call, vhost.name) as client:
        await client.call(kind(**_ends(call), routing_key=key, arguments=arguments))
    destination = call.words["queue" if "queue" in call.words else "destination"]
    place = f"{quote(destination, safe='')}/{quote(properties_key(key, arguments), safe='')}"
    return Response(status_code=201, headers={"Location": place})


async def unbind(call: Call, *, kind: Any) -> Response:
    """Remove the binding that has a properties key."""
    vhost, _source, _destination, (_vhost, _name, _end, key, arguments) = binding_of(call)
    async with acting(call, vhost.name) as client:
        await client.call(kind(**_ends(call), routing_key=key, arguments=dict(arguments)))
    return no_content()


def _ends(call: Call) -> dict[str, str]:
    """Return the two ends of a binding as a method names them."""
    words = {name: "" if word == DEFAULT_EXCHANGE else word for name, word in call.words.items()}
    if "queue" in words:
        return {"exchange": words["exchange"], "queue": call.words["queue"]}
    return {"source": words["exchange"], "destination": words["destination"]}
