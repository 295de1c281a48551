"""The messages of a queue: taken, looked at, dropped and moved."""

from __future__ import annotations

from base64 import b64encode
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.manage.acting import acting
from broker.manage.answers import json_answer, no_content, rows_answer
from broker.manage.api.queue_changes import queue_of
from broker.manage.api_route import ApiRoute
from broker.manage.body_fields import number, required
from broker.manage.message_json import ENCODINGS, payload_fields, shown_properties
from broker.manage.needs import Needs
from broker.manage.refusal import bad_request, not_authorised
from broker.manage.request_target import integer
from broker.manage.rights import check_destination, check_publish
from broker.net.control_request import LARGEST, Asker, Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.responses import Response

    from broker.amqp.client import Received
    from broker.core.auth.permissions import Kind
    from broker.core.queue.queue import Queue
    from broker.core.vhost import Vhost
    from broker.manage.call import Call
    from broker.manage.client import ApiClient

__all__ = ["queue_message_routes"]

QUEUE: Final = "/api/queues/{vhost}/{queue}"
COUNT_MAX: Final = 10_000
GET_BYTES_MAX: Final = 32 << 20  # of bodies in one answer
PIECE_BYTES: Final = 256 << 10
PEEK_MAX: Final = 1000
PEEK_BYTES: Final = 4096  # of each body, unless asked for more
ACK_MODES: Final = {  # -> whether the messages are acked, and requeued
    "ack_requeue_true": (False, True),
    "reject_requeue_true": (False, True),
    "ack_requeue_false": (True, False),
    "reject_requeue_false": (False, False),
}


def queue_message_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("POST", f"{QUEUE}/get", Needs.MANAGEMENT, get),
        ApiRoute("GET", f"{QUEUE}/peek", Needs.MANAGEMENT, peek, ("count", "truncate", "encoding")),
        ApiRoute("GET", f"{QUEUE}/slots", Needs.MANAGEMENT, slots, ()),
        ApiRoute("POST", f"{QUEUE}/purge", Needs.MANAGEMENT, purge, ("limit",)),
        ApiRoute("DELETE", f"{QUEUE}/contents", Needs.MANAGEMENT, empty, ("limit",)),
        ApiRoute("POST", f"{QUEUE}/move", Needs.MANAGEMENT, move),
        ApiRoute("POST", f"{QUEUE}/requeue-dead-letters", Needs.MANAGEMENT, requeue_dead_letters),
        ApiRoute("POST", f"{QUEUE}/pause", Needs.MANAGEMENT, partial(switch, verb="pause_queue")),
        ApiRoute("POST", f"{QUEUE}/resume", Needs.MANAGEMENT, partial(switch, verb="resume_queue")),
    ]


class HttpAsker(Asker):
    """The client of a request as a long-running verb sees it."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def enough(self) -> bool:
        """Return whether the client has gone."""
        return self._client.gone()


# -- taken as by basic.get --------------------------------------------------------------------------------------------


async def get(call: Call) -> Response:
    """Take messages as a consumer would, then ack, reject or requeue them."""
    vhost, fields = call.vhost(), await call.fields()
    required(fields, "count", "ackmode", "encoding")
    ackmode, encoding = fields.text("ackmode"), fields.text("encoding")
    if ackmode not in ACK_MODES:
        raise bad_request(f"ackmode should be one of {', '.join(ACK_MODES)}")
    if encoding not in ENCODINGS:
        raise bad_request("Unsupported encoding. Please use auto or base64.")
    count = number(fields, "count", 1, -LARGEST, LARGEST)
    bytes_max = number(fields, "truncate", 0, 0, LARGEST) if fields.has("truncate") else None
    async with acting(call, vhost.name) as client:
        rows: list[dict[str, Any]] = []
        size_bytes = last = 0
        while len(rows) < min(count, COUNT_MAX) and size_bytes < GET_BYTES_MAX:
            got = await client.get(call.words["queue"])
            if got is None:
                break
            rows.append(_row(got, encoding, bytes_max))
            size_bytes += len(got.body)
            last = got.method.delivery_tag or 0
        if rows:
            ack, requeue = ACK_MODES[ackmode]
            client.settle(last, ack=ack, requeue=requeue)
    return messages_answer(rows)


def messages_answer(rows: Sequence[Mapping[str, Any]]) -> Response:
    """Answer with messages, in pieces that take about a millisecond each."""
    size_bytes = sum([len(row["payload"]) for row in rows])
    return rows_answer(rows, at_once=max(1, min(len(rows), len(rows) * PIECE_BYTES // max(1, size_bytes))))


def _row(got: Received, encoding: str, bytes_max: int | None) -> dict[str, Any]:
    method = got.method
    return {
        "redelivered": method.redelivered,
        "exchange": method.exchange,
        "routing_key": method.routing_key,
        "message_count": method.message_count,
        "properties": shown_properties(got.header),
        **payload_fields(got.body, encoding, bytes_max),
    }


# -- looked at, dropped and moved as by an operator -------------------------------------------------------------------


async def peek(call: Call) -> Response:
    """Show the next messages without taking them: none counts as delivered."""
    vhost, queue = queue_of(call)
    encoding = call.query.get("encoding", "auto")
    if encoding not in ENCODINGS:
        raise bad_request("Unsupported encoding. Please use auto or base64.")
    count = integer("count", call.query.get("count", "1"), PEEK_MAX)
    bytes_max = integer("truncate", call.query.get("truncate", str(PEEK_BYTES)))
    _check(call, vhost, queue, "read", Needs.MONITORING)
    found = await _verb(call, "peek", vhost, queue, {"count": max(1, count), "body_bytes": bytes_max}) if count else []
    return messages_answer([_peeked(row, encoding) for row in found])


def _peeked(row: Mapping[str, Any], encoding: str) -> dict[str, Any]:
    """Return the row of a message with the names that `get` uses."""
    is_text = row["body_encoding"] == "utf-8"
    in_base64 = is_text and encoding == "base64"
    properties = {"type" if name == "message_type" else name: value for name, value in row["properties"].items()}
    return {
        "id": row["id"],
        "priority_level": row["priority_level"],
        "redelivered": row["redelivered"],
        "exchange": row["exchange"],
        "routing_key": row["routing_key"],
        "properties": properties,
        "payload_bytes": row["body_bytes"],
        "payload_complete": row["body_complete"],
        "payload": b64encode(row["body"].encode()).decode() if in_base64 else row["body"],
        "payload_encoding": "string" if is_text and not in_base64 else "base64",
    }


async def slots(call: Call) -> Response:
    """Show the slots of a queue, in order."""
    vhost, queue = queue_of(call)
    return json_answer(await _verb(call, "slots", vhost, queue, {}))


async def purge(call: Call) -> Response:
    """Drop the ready messages of a queue, or as many as `limit` from its head; answer with their number."""
    return json_answer(await _purged(call))


async def empty(call: Call) -> Response:
    """Drop what `purge` drops, and answer as RabbitMQ does."""
    await _purged(call)
    return no_content()


async def _purged(call: Call) -> Any:
    vhost, queue = queue_of(call)
    text = call.query.get("limit", "")
    limit = {"limit": integer("limit", text)} if text else {}
    _check(call, vhost, queue, "read")
    return await _verb(call, "purge_queue", vhost, queue, limit)


async def switch(call: Call, *, verb: str) -> Response:
    """Pause a queue, which then delivers nothing, or resume it."""
    vhost, queue = queue_of(call)
    _check(call, vhost, queue, "configure")
    await _verb(call, verb, vhost, queue, {})
    return no_content()


async def move(call: Call) -> Response:
    """Move messages to a queue, or through an exchange; without a key those stay whose own key the user may not use."""
    vhost, queue = queue_of(call)
    fields = await call.fields(("to", "limit", "match"))
    _check(call, vhost, queue, "read")
    check_destination(call, vhost, fields.text("to"))
    return json_answer(await _verb(call, "move", vhost, queue, _arguments(fields, "to", "limit", "match")))


async def requeue_dead_letters(call: Call) -> Response:
    """Move dead letters back to the queues where they died, or through the exchanges that they came from.

    Those stay that the user may not publish there: a publisher may have invented where a dead letter came from.
    """
    vhost, queue = queue_of(call)
    fields = await call.fields(("into", "reasons", "died_in", "match", "limit"))
    _check(call, vhost, queue, "read")
    if fields.text("into", "queue") == "queue":
        check_publish(call, vhost, vhost.exchanges[""], ())
    arguments = _arguments(fields, "into", "reasons", "died_in", "match", "limit")
    return json_answer(await _verb(call, "requeue_dead_letters", vhost, queue, arguments))


def _check(call: Call, vhost: Vhost, queue: Queue, kind: Kind, tag: Needs = Needs.ADMINISTRATOR) -> None:
    """Let the user do something to the messages of a queue. One that is exclusive belongs to a connection: others need
    a tag as well.

    Raises: ChannelError, HttpRefused.
    """
    call.broker.permissions.check(call.user, vhost.queue_resource(queue.name), kind)
    if queue.exclusive_owner is not None and not call.may(tag):
        raise not_authorised(f"{vhost.queue_resource(queue.name)} is exclusive: it belongs to a connection")


def _arguments(fields: Request, *names: str) -> dict[str, Any]:
    return {name: fields.value(name) for name in names if fields.has(name)}


async def _verb(call: Call, verb: str, vhost: Vhost, queue: Queue, arguments: Mapping[str, Any]) -> Any:
    """Carry out a verb of the control socket for a queue. Raises: ControlRefused."""
    named = {**arguments, "vhost": vhost.name, "queue": queue.name}
    request = Request(named, HttpAsker(call.client), partial(check_publish, call, vhost))
    return await call.broker.verbs[verb](request)
