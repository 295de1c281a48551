"""Routes for the messages of a queue, and for pausing its deliveries."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from broker.amqp.client import Received
from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost
from broker.manage.acting import acting
from broker.manage.answers import Response, json_answer, no_content, rows_answer
from broker.manage.api.queues import queue_of
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.refusal import bad_request, not_authorised
from broker.manage.request_target import integer
from broker.operations.request import LARGEST, Request
from broker.operations.rows import body_fields, properties_row

ENCODINGS: Final = ("auto", "base64")
QUEUE: Final = "/api/queues/{vhost}/{queue}"
COUNT_MAX: Final = 10_000
GET_BYTES_MAX: Final = 32 << 20  # no more messages are fetched once their bodies have this size
PIECE_BYTES: Final = 256 << 10
UNACKED_DEFAULT: Final = 100
UNACKED_MAX: Final = 1000
OF_MESSAGE: Final = frozenset(("properties", "body", "body_bytes", "body_complete", "body_encoding"))
PEEK_MAX: Final = 1000
PEEK_BYTES: Final = 4096  # the part of each body that is shown by default
MOVES: Final = {  # the fields of the body, by the last word of the path
    "move": ("to", "limit", "match"),
    "requeue-dead-letters": ("into", "reasons", "died_in", "match", "limit"),
}
ACK_MODES: Final = {  # whether the messages are acked, and whether they are requeued
    "ack_requeue_true": (False, True),
    "reject_requeue_true": (False, True),
    "ack_requeue_false": (True, False),
    "reject_requeue_false": (False, False),
}


# -- with basic.get ---------------------------------------------------------------------------------------------------


async def get(call: Call) -> Response:
    """Get messages, then ack, reject or requeue them."""
    vhost, fields = call.vhost(), await call.fields(required=("count", "ackmode", "encoding"))
    ackmode, encoding = fields.text("ackmode"), fields.text("encoding")
    if ackmode not in ACK_MODES:
        raise bad_request(f"ackmode should be one of {', '.join(ACK_MODES)}")
    if encoding not in ENCODINGS:
        raise bad_request("Unsupported encoding. Please use auto or base64.")
    count = fields.number("count", 1, -LARGEST, LARGEST)
    bytes_max = fields.number("truncate", 0, 0, LARGEST) if fields.has("truncate") else None
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
    """Answer with messages, which are encoded in slices of about a millisecond."""
    size_bytes = sum([len(row["payload"]) for row in rows])
    return rows_answer(rows, at_once=max(1, min(len(rows), len(rows) * PIECE_BYTES // max(1, size_bytes))))


def _row(got: Received, encoding: str, bytes_max: int | None) -> dict[str, Any]:
    method = got.method
    return {
        "redelivered": method.redelivered,
        "exchange": method.exchange,
        "routing_key": method.routing_key,
        "message_count": method.message_count,
        "properties": _named(properties_row(got.header)),
        **payload_fields(got.body, encoding, bytes_max),
    }


# -- with operations --------------------------------------------------------------------------------------------------


async def peek(call: Call) -> Response:
    """Answer with the next messages; they stay ready and do not count as delivered."""
    vhost, queue = queue_of(call)
    encoding = call.query.get("encoding", "auto")
    if encoding not in ENCODINGS:
        raise bad_request("Unsupported encoding. Please use auto or base64.")
    count = integer("count", call.query.get("count", "1"), PEEK_MAX)
    bytes_max = integer("truncate", call.query.get("truncate", str(PEEK_BYTES)))
    shown = {"count": max(1, count), "body_bytes": bytes_max}
    found = await _operate(call, "peek", vhost, queue, shown, Needs.MONITORING)
    return messages_answer([_peeked(row, encoding) for row in found[:count]])


def _peeked(row: Mapping[str, Any], encoding: str) -> dict[str, Any]:
    """Return the row of a message under the field names of `get`."""
    is_text = row["body_encoding"] == "utf-8"
    in_base64 = is_text and encoding == "base64"
    return {
        "id": row["id"],
        "priority_level": row["priority_level"],
        "redelivered": row["redelivered"],
        "exchange": row["exchange"],
        "routing_key": row["routing_key"],
        "properties": _named(row["properties"]),
        "payload_bytes": row["body_bytes"],
        "payload_complete": row["body_complete"],
        "payload": b64encode(row["body"].encode()).decode() if in_base64 else row["body"],
        "payload_encoding": "string" if is_text and not in_base64 else "base64",
    }


async def unacked(call: Call) -> Response:
    """List the unacked messages of a queue on all nodes, the oldest deliveries first.

    Properties and payloads are shown only to users who may read the queue; if it is exclusive, only to those with the
    tag monitoring. Units: `age_ms` is the time since the delivery, accurate to a second.
    """
    vhost, queue = queue_of(call)
    count = integer("count", call.query.get("count", str(UNACKED_DEFAULT)), UNACKED_MAX)
    bytes_max = integer("truncate", call.query.get("truncate", "0"))
    shows = call.broker.permissions.allows(call.user, vhost.queue_resource(queue.name), "read") and (
        queue.exclusive_owner is None or call.may(Needs.MONITORING)
    )
    wanted = {"vhost": vhost.name, "queue": queue.name, "count": count, "body_bytes": bytes_max if shows else 0}
    rows = await call.broker.verbs["unacked"](Request(wanted))
    return json_answer([_unacked(row, shows=shows, with_payload=bytes_max > 0) for row in rows])


def _unacked(row: Mapping[str, Any], *, shows: bool, with_payload: bool) -> dict[str, Any]:
    """Return the row of a message under the field names of `get`; without `shows`, omit properties and payload."""
    shown = {name: value for name, value in row.items() if name not in OF_MESSAGE}
    shown["payload_bytes"] = row.get("body_bytes")
    if row["properties"] is None or not shows:
        return shown
    shown["properties"] = _named(row["properties"])
    if with_payload:
        shown["payload"] = row["body"]
        shown["payload_encoding"] = "string" if row["body_encoding"] == "utf-8" else "base64"
    return shown


async def slots(call: Call) -> Response:
    """Answer with the slots of a queue."""
    vhost, queue = queue_of(call)
    return json_answer(await call.operate("slots", vhost=vhost.name, queue=queue.name))


async def act(call: Call, *, verb: str, answers: bool = True) -> Response:
    """Purge the ready messages of a queue, or release its delayed ones, up to `limit` of them.

    Answer with their number, or without a body if `answers` is False, as RabbitMQ does.
    """
    text = call.query.get("limit", "")
    limit = {"limit": integer("limit", text)} if text else {}
    answer = await _operate(call, verb, *queue_of(call), limit)
    return json_answer(answer) if answers else no_content()


async def switch(call: Call, *, verb: str) -> None:
    """Pause the deliveries of a queue, or resume them."""
    await _operate(call, verb, *queue_of(call), {})


async def move(call: Call, *, verb: str, names: Sequence[str]) -> Response:
    """Move messages of a queue to another destination, or dead letters back to where they were published or died. A
    message stays in the queue if the user may not publish it there; the origin that a dead letter names may be forged.
    """
    vhost, queue = queue_of(call)
    fields = await call.fields(names)
    arguments = {name: fields.value(name) for name in names if fields.has(name)}
    return json_answer(await _operate(call, verb, vhost, queue, arguments))


async def _operate(
    call: Call,
    operation: str,
    vhost: Vhost,
    queue: Queue,
    arguments: Mapping[str, Any],
    tag: Needs = Needs.ADMINISTRATOR,
) -> Any:
    """Run an operation on a queue; if the queue is exclusive, the user also needs `tag`.

    Raises: ChannelError, HttpRefused, OperationRefused.
    """
    request = call.allowed(operation, vhost=vhost.name, queue=queue.name, **arguments)
    if queue.exclusive_owner is not None and not call.may(tag):
        raise not_authorised(f"{vhost.queue_resource(queue.name)} is exclusive: it belongs to a connection")
    return await call.broker.verbs[operation](request)


def _named(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a message under their names in the API."""
    return {"type" if name == "message_type" else name: value for name, value in properties.items()}


def payload_fields(body: bytes, encoding: str, bytes_max: int | None) -> dict[str, Any]:
    """Return the fields of a body, which is text if it is UTF-8 and the encoding is auto, and otherwise base64.

    A character that `bytes_max` cuts in two is omitted from the text.
    """
    shown = body if bytes_max is None else body[:bytes_max]
    found = body_fields(body, len(shown))
    is_text = encoding == "auto" and found["body_encoding"] == "utf-8"
    return {
        "payload_bytes": len(body),
        "payload": found["body"] if is_text else b64encode(shown).decode(),
        "payload_encoding": "string" if is_text else "base64",
    }


ROUTES: Final = (
    ApiRoute("POST", f"{QUEUE}/get", Needs.MANAGEMENT, get),
    ApiRoute("GET", f"{QUEUE}/peek", Needs.MANAGEMENT, peek, ("count", "truncate", "encoding")),
    ApiRoute("GET", f"{QUEUE}/unacked", Needs.MANAGEMENT, unacked, ("count", "truncate")),
    ApiRoute("GET", f"{QUEUE}/slots", Needs.MANAGEMENT, slots, ()),
    ApiRoute("POST", f"{QUEUE}/purge", Needs.MANAGEMENT, partial(act, verb="purge_queue"), ("limit",)),
    ApiRoute("POST", f"{QUEUE}/release", Needs.MANAGEMENT, partial(act, verb="release_delayed"), ("limit",)),
    ApiRoute(
        "DELETE", f"{QUEUE}/contents", Needs.MANAGEMENT, partial(act, verb="purge_queue", answers=False), ("limit",)
    ),
    *(
        ApiRoute("POST", f"{QUEUE}/{path}", Needs.MANAGEMENT, partial(move, verb=path.replace("-", "_"), names=names))
        for path, names in MOVES.items()
    ),
    ApiRoute("POST", f"{QUEUE}/pause", Needs.MANAGEMENT, partial(switch, verb="pause_queue")),
    ApiRoute("POST", f"{QUEUE}/resume", Needs.MANAGEMENT, partial(switch, verb="resume_queue")),
)
