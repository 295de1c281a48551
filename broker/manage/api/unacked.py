"""The unacked messages of a queue: who holds each of them, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.manage.answers import json_answer
from broker.manage.api.queue_changes import queue_of
from broker.manage.api_route import ApiRoute
from broker.manage.needs import Needs
from broker.manage.request_target import integer
from broker.net.control_request import Request

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.manage.call import Call

__all__ = ["unacked_routes"]

COUNT: Final = 100
COUNT_MAX: Final = 1000
OF_MESSAGE: Final = frozenset(("properties", "body", "body_bytes", "body_complete", "body_encoding"))


def unacked_routes() -> list[ApiRoute]:
    """Return the routes."""
    path = "/api/queues/{vhost}/{queue}/unacked"
    return [ApiRoute("GET", path, Needs.MANAGEMENT, unacked, ("count", "truncate"))]


async def unacked(call: Call) -> Response:
    """List the unacked messages of a queue on all nodes, those that are held longest first.

    Units: `age_ms` is how long ago a message was delivered, up to a second less. Rows of clients of another node name
    it. Properties and payloads are for users who may read the queue.
    """
    vhost, queue = queue_of(call)
    count = integer("count", call.query.get("count", str(COUNT)), COUNT_MAX)
    bytes_max = integer("truncate", call.query.get("truncate", "0"))
    shows = call.broker.permissions.allows(call.user, vhost.queue_resource(queue.name), "read") and (
        queue.exclusive_owner is None or call.may(Needs.MONITORING)
    )
    wanted = {"vhost": vhost.name, "queue": queue.name, "count": count, "body_bytes": bytes_max if shows else 0}
    rows = await call.broker.verbs["unacked"](Request(wanted))
    return json_answer([_row(row, shows=shows, with_payload=bytes_max > 0) for row in rows])


def _row(row: Mapping[str, Any], *, shows: bool, with_payload: bool) -> dict[str, Any]:
    """Return the row of a message with the names that `get` uses, and of the message itself what may be shown."""
    shown = {name: value for name, value in row.items() if name not in OF_MESSAGE}
    shown["payload_bytes"] = row.get("body_bytes")
    if row["properties"] is None or not shows:
        return shown
    shown["properties"] = {
        "type" if name == "message_type" else name: value for name, value in row["properties"].items()
    }
    if with_payload:
        shown["payload"] = row["body"]
        shown["payload_encoding"] = "string" if row["body_encoding"] == "utf-8" else "base64"
    return shown
