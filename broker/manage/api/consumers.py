"""GET /api/consumers: the consumers of this node's clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from broker.manage.api_route import ApiRoute
from broker.manage.call import visible_vhosts
from broker.manage.listing import Listing, listed
from broker.manage.needs import Needs
from broker.operations.rows import consumer_row, consumers_of

if TYPE_CHECKING:
    from broker.manage.call import Call

__all__ = ["consumer_routes"]


def consumer_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("GET", "/api/consumers", Needs.MANAGEMENT, list_consumers),
        ApiRoute("GET", "/api/consumers/{vhost}", Needs.MANAGEMENT, list_consumers),
    ]


async def list_consumers(call: Call) -> Response:
    """Answer with the consumers of the vhosts."""
    found = (
        (vhost, queue, consumer)
        for vhost in visible_vhosts(call)
        for queue in list(vhost.queues.values())
        for consumer in consumers_of(queue)
    )
    node = call.broker.node_name
    return await listed(
        call.query,
        Listing(
            found,
            names=lambda one: (one[2].tag, one[1].name),
            whole=lambda one: consumer_row(node, *one),
            order=lambda one: f"{one[0].name}\0{one[1].name}\0{one[2].tag}",
        ),
    )
