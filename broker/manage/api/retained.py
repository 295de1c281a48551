"""The retained messages of a vhost."""

from __future__ import annotations

from typing import Final

from broker.manage.answers import Response, json_answer
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.refusal import bad_request
from broker.manage.request_target import integer

PATH: Final = "/api/slotmq/retained/{vhost}"
SHOWN: Final = "100"


async def retained(call: Call) -> Response:
    """List the retained messages that a filter of MQTT matches; with `truncate` also as much of their bodies."""
    limit, body_bytes = (integer(name, call.query.get(name, at)) for name, at in (("limit", SHOWN), ("truncate", "0")))
    wanted = {"filter": call.query.get("filter", "#"), "limit": limit, "body_bytes": body_bytes}
    return json_answer(await call.operate("list_retained", vhost=call.vhost().name, **wanted))


async def delete(call: Call) -> Response:
    """Delete the retained messages that a filter matches, and answer with their number."""
    if "filter" not in call.query:
        raise bad_request("missing: filter")
    return json_answer(await call.operate("delete_retained", vhost=call.vhost().name, filter=call.query["filter"]))


ROUTES: Final = (
    ApiRoute("GET", PATH, Needs.MANAGEMENT, retained, ("filter", "limit", "truncate")),
    ApiRoute("DELETE", PATH, Needs.MANAGEMENT, delete, ("filter",)),
)
