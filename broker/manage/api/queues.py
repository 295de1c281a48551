"""The queues: listed with what binds them, and declared and deleted as the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from broker.administration.deciding import count_all
from broker.amqp.lenient_methods import DeclareAny, DeleteAny
from broker.core.queue.queue_bytes import QueueBytes
from broker.event_log import get_logger
from broker.manage.acting import acting
from broker.manage.answers import created, json_answer, no_content
from broker.manage.api.bindings import arriving
from broker.manage.api.queue_rows import BRIEF_COLUMNS, NO_SIZES, ListedQueue, QueueRows
from broker.manage.api_route import ApiRoute
from broker.manage.body_fields import flag, table
from broker.manage.call import visible_vhosts
from broker.manage.columns import Columns, Row
from broker.manage.gradual import pause
from broker.manage.listing import Listing, listed
from broker.manage.needs import Needs
from broker.manage.refusal import bad_request, not_found
from broker.operations.rows import consumer_row, consumers_of

if TYPE_CHECKING:
    from broker.core.queue.queue import Queue
    from broker.manage.call import Call

__all__ = ["queue_of", "queue_routes"]

QUEUE: Final = "/api/queues/{vhost}/{queue}"
TRUE: Final = "true"
ACTIONS: Final = ("sync", "cancel_sync")  # of mirrored queues, which this broker does not have
SHOWN_EXACTLY_MAX: Final = 100_000  # messages of a queue whose bytes are counted; more are extrapolated
MESSAGES_AT_ONCE: Final = 10_000  # messages that are counted between two turns of the loop

_log = get_logger()


def queue_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("GET", "/api/queues", Needs.MANAGEMENT, list_queues),
        ApiRoute("GET", "/api/queues/detailed", Needs.MANAGEMENT, list_queues),
        ApiRoute("GET", "/api/queues/{vhost}", Needs.MANAGEMENT, list_queues),
        ApiRoute("GET", QUEUE, Needs.MANAGEMENT, show_queue),
        ApiRoute("GET", f"{QUEUE}/bindings", Needs.MANAGEMENT, list_bindings),
        ApiRoute("PUT", QUEUE, Needs.MANAGEMENT, declare),
        ApiRoute("DELETE", QUEUE, Needs.MANAGEMENT, delete),
        ApiRoute("POST", f"{QUEUE}/actions", Needs.MANAGEMENT, act),
    ]


def queue_of(call: Call) -> ListedQueue:
    """Return the vhost and the queue that the path names. Raises: HttpRefused 404, 401."""
    vhost = call.vhost()
    queue = vhost.queues.get(call.words["queue"])
    if queue is None:
        raise not_found()
    return vhost, queue


async def list_queues(call: Call) -> Response:
    """Answer with a list of queues."""
    vhosts = visible_vhosts(call)
    if call.broker.cluster is not None:
        await count_all([queue for vhost in vhosts for queue in vhost.queues.values()])
    found = ((vhost, queue) for vhost in vhosts for queue in list(vhost.queues.values()))
    rows = QueueRows(call.broker)
    whole: Callable[[ListedQueue], Row] = rows.whole
    if call.query.get("disable_stats") == "true":
        whole = rows.brief if call.query.get("enable_queue_totals") == "true" else rows.without_stats
    return await listed(
        call.query,
        Listing(
            found,
            names=lambda one: (one[1].name,),
            whole=whole,
            order=lambda one: f"{one[0].name}\0{one[1].name}",
            brief=rows.brief,
            brief_columns=BRIEF_COLUMNS,
        ),
    )


async def show_queue(call: Call) -> Response:
    """Answer with one queue: its consumers, and unless disable_stats is set its bytes and the samples asked for.

    Cost: O(messages), bounded, for its bytes; O(slots) if the chosen columns are without them.
    """
    vhost, queue = queue_of(call)
    broker = call.broker
    if broker.cluster is not None:
        await count_all([queue])
    rows = QueueRows(broker)
    text = call.query.get("columns", "")
    columns = Columns(text) if text else None
    if call.query.get("disable_stats") == "true":
        row = rows.brief((vhost, queue))
    else:
        sized = columns is None or not columns.names.isdisjoint(NO_SIZES)
        row = rows.whole((vhost, queue), await _count_bytes(queue) if sized else QueueBytes())
    row |= {
        "consumer_details": [consumer_row(broker.node_name, vhost, queue, one) for one in consumers_of(queue)],
        "deliveries": [],
        "incoming": [],
    }
    if "message_stats" in row:
        rows.add_samples(row, vhost, queue, call.query)
    return json_answer(row if columns is None else columns.of(row))


async def _count_bytes(queue: Queue) -> QueueBytes:
    """Return the bytes of a queue's messages, of the first ones if they are many. Cost: bounded, in pieces."""
    counted = QueueBytes()
    messages = 0
    for length in counted.count(queue):
        messages += length
        if counted.messages >= SHOWN_EXACTLY_MAX:
            break
        if messages > MESSAGES_AT_ONCE:
            messages = 0
            await pause()
    return counted


async def list_bindings(call: Call) -> Response:
    """Answer with the bindings to one queue."""
    vhost, queue = queue_of(call)
    return await arriving(call, vhost, queue)


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
