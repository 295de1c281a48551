"""The overlay's brokers of this process: links, interest, streams, and where a message would go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.manage.answers import json_answer, no_content
from broker.manage.api.carried_out import carried_out
from broker.manage.api_route import ApiRoute
from broker.manage.needs import Needs
from broker.manage.refusal import not_found
from broker.net.control_verbs.overlay import NO_OVERLAY

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.manage.call import Call
    from broker.net.control_verbs.overlay import OverlayView

__all__ = ["overlay_routes"]


def overlay_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("GET", "/api/slotmq/overlay", Needs.MONITORING, overlay, ()),
        ApiRoute("GET", "/api/slotmq/overlay/explain", Needs.MONITORING, explain, ("vhost", "exchange", "key")),
        ApiRoute("DELETE", "/api/slotmq/overlay/leaves/{leaf}", Needs.ADMINISTRATOR, forget, ()),
    ]


def _view(call: Call) -> OverlayView:
    view = call.broker.overlay
    if not view.is_on:
        raise not_found(NO_OVERLAY)
    return view


async def overlay(call: Call) -> Response:
    """Answer with a row for each broker."""
    return json_answer(_view(call).facts())


async def explain(call: Call) -> Response:
    """Answer where a message with a routing key would go from each broker, and why."""
    view, query = _view(call), call.query
    return json_answer(view.explain(query.get("vhost", "/"), query.get("exchange"), query.get("key", "")))


async def forget(call: Call) -> Response:
    """Keep nothing any more for a leaf that is away for good."""
    _view(call)
    await carried_out(call, "overlay_forget", leaf=call.words["leaf"])
    return no_content()
