"""Routes for the retained messages of a vhost."""

from __future__ import annotations

from typing import Final

from broker.manage.answers import Response, json_answer
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.refusal import bad_request
from broker.manage.request_target import integer

PATH: Final = "/api/slotmq/retained/{vhost}"
DEFAULTS: Final = (("limit", "100"), ("truncate", "0"))


async def retained(call: Call) -> Response:
    """List the retained messages that match an MQTT filter, with up to `truncate` bytes of each body.

    If `truncate` is 0, the properties are omitted, too.
    """
    limit, body_bytes = [integer(name, call.query.get(name, default)) for name, default in DEFAULTS]
    wanted = {"filter": call.query.get("filter", "#"), "limit": limit, "body_bytes": body_bytes}
    return json_answer(await call.operate("list_retained", vhost=call.vhost().name, **wanted))


async def delete(call: Call) -> Response:
    """Delete the retained messages that match a filter, and answer with their number."""
    if "filter" not in call.query:
        raise bad_request("missing: filter")
    return json_answer(await call.operate("delete_retained", vhost=call.vhost().name, filter=call.query["filter"]))


ROUTES: Final = (
    ApiRoute("GET", PATH, Needs.MANAGEMENT, retained, ("filter", "limit", "truncate")),
    ApiRoute("DELETE", PATH, Needs.MANAGEMENT, delete, ("filter",)),
)
