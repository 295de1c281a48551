"""GET /api/consumers: the consumers of this node's clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from starlette.responses import Response

from broker.core.definitions.export import json_table
from broker.manage.api.visible import visible_vhosts
from broker.manage.api_route import ApiRoute
from broker.manage.columns import Row
from broker.manage.listing import Listing, listed
from broker.manage.needs import Needs

if TYPE_CHECKING:
    from broker.core.queue.consumer import Consumer
    from broker.core.queue.queue import Queue
    from broker.core.session.connection import SessionOfConnection
    from broker.core.vhost import Vhost
    from broker.manage.call import Call
    from broker.manage.managed_broker import ManagedBroker

__all__ = ["consumer_routes", "consumer_row", "consumers_of"]

Listed = tuple["Vhost", "Queue", "Consumer"]


def consumer_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("GET", "/api/consumers", Needs.MANAGEMENT, list_consumers),
        ApiRoute("GET", "/api/consumers/{vhost}", Needs.MANAGEMENT, list_consumers),
    ]


async def list_consumers(call: Call) -> Response:
    """Answer with the consumers of the vhosts."""
    found = (
        (vhost, queue, cast("Consumer", consumer))
        for vhost in visible_vhosts(call)
        for queue in list(vhost.queues.values())
        for consumer in list(queue.consumers)
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


def consumers_of(broker: ManagedBroker, vhost: Vhost, queue: Queue) -> Iterator[Row]:
    """Yield the rows of the consumers of one queue."""
    for consumer in list(queue.consumers):
        yield consumer_row(broker.node_name, vhost, queue, cast("Consumer", consumer))


def consumer_row(node: str, vhost: Vhost, queue: Queue, consumer: Consumer) -> Row:
    """Return the row of a consumer."""
    session = cast("SessionOfConnection", consumer.connection.session)
    number = consumer.session.number
    active = queue.consumers.active
    return {
        "ack_required": not consumer.no_ack,
        "active": active is None or active is consumer,
        "activity_status": "up" if active is None else "single_active" if active is consumer else "waiting",
        "arguments": json_table(consumer.arguments),
        "channel_details": {
            "connection_name": session.name,
            "name": f"{session.name} ({number})",
            "node": node,
            "number": number,
            "peer_host": session.peer.address,
            "peer_port": session.peer.port,
            "user": "" if session.user is None else session.user.name,
        },
        "consumer_tag": consumer.tag,
        "exclusive": consumer.exclusive,
        "messages_unacknowledged": consumer.unacked,
        "prefetch_count": consumer.prefetch,
        "priority": consumer.priority,
        "queue": {"name": queue.name, "vhost": vhost.name},
    }
