"""Queues declared and deleted, as the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.amqp.lenient_methods import DeclareAny, DeleteAny
from broker.event_log import get_logger
from broker.manage.acting import acting
from broker.manage.answers import created, no_content
from broker.manage.api_route import ApiRoute
from broker.manage.body_fields import flag, table
from broker.manage.needs import Needs
from broker.manage.refusal import bad_request, not_found

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.core.queue.queue import Queue
    from broker.core.vhost import Vhost
    from broker.manage.call import Call

__all__ = ["queue_change_routes", "queue_of"]

QUEUE: Final = "/api/queues/{vhost}/{queue}"
TRUE: Final = "true"
ACTIONS: Final = ("sync", "cancel_sync")  # of mirrored queues, which this broker does not have

_log = get_logger()


def queue_change_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("PUT", QUEUE, Needs.MANAGEMENT, declare),
        ApiRoute("DELETE", QUEUE, Needs.MANAGEMENT, delete),
        ApiRoute("POST", f"{QUEUE}/actions", Needs.MANAGEMENT, act),
    ]


def queue_of(call: Call) -> tuple[Vhost, Queue]:
    """Return the queue that the path names, and its vhost. Raises: HttpRefused."""
    vhost = call.vhost()
    queue = vhost.queues.get(call.words["queue"])
    if queue is None:
        raise not_found()
    return vhost, queue


async def declare(call: Call) -> Response:
    """Declare a queue: 201 for a new one, 204 for one that exists with these arguments."""
    vhost, name, fields = call.vhost(), call.words["queue"], await call.fields()
    if flag(fields, "exclusive"):
        raise bad_request("an exclusive queue belongs to a connection, which a request does not have")
    method = DeclareAny(
        queue=name,
        durable=flag(fields, "durable"),
        auto_delete=flag(fields, "auto_delete"),
        arguments=table(fields, "arguments"),
    )
    is_new = name not in vhost.queues
    async with acting(call, vhost.name) as client:
        await client.call(method)
    if is_new:
        facts = {"durable": method.durable, "arguments": method.arguments, "by": call.user.name}
        _log.info("queue.declared", vhost=vhost.name, queue=name, **facts)
    return created() if is_new else no_content()


async def delete(call: Call) -> Response:
    """Delete a queue, on the conditions if-empty and if-unused."""
    vhost, queue = queue_of(call)
    conditions = {name: call.query.get(f"if-{name}") == TRUE for name in ("empty", "unused")}
    async with acting(call, vhost.name) as client:
        await client.call(DeleteAny(queue=queue.name, if_unused=conditions["unused"], if_empty=conditions["empty"]))
    _log.info("queue.deleted", vhost=vhost.name, queue=queue.name, by=call.user.name)
    return no_content()


async def act(call: Call) -> Response:
    """Accept what RabbitMQ does to mirrored queues: there is nothing to do."""
    queue_of(call)
    action = (await call.fields()).text("action")
    if action not in ACTIONS:
        raise bad_request(f"unknown action '{action}': there are {', '.join(ACTIONS)}")
    return no_content()
