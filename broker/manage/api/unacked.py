"""The unacked messages of a queue: who holds each of them, and for how long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from broker.manage.answers import json_answer
from broker.manage.api.queue_changes import queue_of
from broker.manage.api_route import ApiRoute
from broker.manage.gradual import pause
from broker.manage.message_json import payload_fields, shown_properties
from broker.manage.needs import Needs
from broker.manage.request_target import integer

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.core.queue.consumer import Consumer
    from broker.core.queue.queue import Queue
    from broker.core.queue.unacked import Run
    from broker.core.session.basic import BasicSession
    from broker.core.session.channel import SessionOfChannel
    from broker.core.session.connection import SessionOfConnection
    from broker.manage.call import Call

__all__ = ["unacked_routes"]

COUNT: Final = 100
COUNT_MAX: Final = 1000
PAYLOAD_BYTES_MAX: Final = 32 << 20  # of all payloads in one answer
SESSIONS_AT_ONCE: Final = 100  # that are looked at between two turns of the loop


def unacked_routes() -> list[ApiRoute]:
    """Return the routes."""
    path = "/api/queues/{vhost}/{queue}/unacked"
    return [ApiRoute("GET", path, Needs.MANAGEMENT, unacked, ("count", "truncate"))]


class _Held(NamedTuple):
    """Messages that one consumer, or basic.get, of one channel holds."""

    run: Run
    basic: BasicSession
    session: SessionOfConnection

    @property
    def age_rank(self) -> tuple[bool, int]:
        """The oldest first; what was delivered a moment ago has no mark yet and comes last."""
        since_ms = self.basic.held_since_ms(self.run.low)
        return since_ms is None, since_ms or 0


async def unacked(call: Call) -> Response:
    """List the unacked messages of a queue, those that are held longest first.

    Units: `age_ms` is how long ago a message was delivered, up to a second less. In a cluster the list has the messages
    that clients of this node hold. Properties and payloads are for users who may read the queue.
    """
    vhost, queue = queue_of(call)
    count = integer("count", call.query.get("count", str(COUNT)), COUNT_MAX)
    bytes_max = min(integer("truncate", call.query.get("truncate", "0")), PAYLOAD_BYTES_MAX // max(count, 1))
    shows = call.broker.permissions.allows(call.user, vhost.queue_resource(queue.name), "read") and (
        queue.exclusive_owner is None or call.may(Needs.MONITORING)
    )
    held: list[_Held] = []
    for place, session in enumerate(call.broker.listener.sessions(), 1):
        if session.vhost is vhost:
            held += _held_by(session, queue)
        if place % SESSIONS_AT_ONCE == 0:
            await pause()
    held.sort(key=lambda one: one.age_rank)
    rows: list[dict[str, Any]] = []
    for one in held:
        for tag in one.run.tags():
            if len(rows) == count:
                return json_answer(rows)
            rows.append(_row(one, tag, vhost.ports.clock.now_ms, bytes_max if shows else None))
    return json_answer(rows)


def _held_by(session: SessionOfConnection, queue: Queue) -> Iterator[_Held]:
    """Yield what the channels of a connection hold of a queue."""
    streams = queue.streams
    for _number, channel in sorted(session.connection.channels.items()):
        basic = cast("SessionOfChannel", channel.session).basic
        for run in basic.unacked.runs:
            if run.left and any(run.stream is stream for stream in streams):
                yield _Held(run, basic, session)


def _row(held: _Held, tag: int, now_ms: int, bytes_max: int | None) -> dict[str, Any]:
    """Return the row of a message; `bytes_max` is None when neither properties nor payload are shown."""
    run, basic, session = held
    index = run.indexes[tag - run.first]
    since_ms = basic.held_since_ms(tag)
    contents = cast("Sequence[Any] | None", run.slot.contents)
    message = None if contents is None else contents[index]  # the slot may be on disk
    row = {
        "id": run.stream.message_id(run.slot, index),
        "priority_level": run.stream.level,
        "delivery_tag": tag,
        "age_ms": 0 if since_ms is None else max(0, now_ms - since_ms),
        "redelivered": run.slot.redelivered(index),
        "consumer_tag": None if run.consumer is None else cast("Consumer", run.consumer).tag,
        "connection": session.name,
        "channel": basic.number,
        "user": None if session.user is None else session.user.name,
        "exchange": None if message is None else message.envelope.exchange,
        "routing_key": None if message is None else message.envelope.key,
        "payload_bytes": None if message is None else len(message.body),
    }
    if message is None or bytes_max is None:
        return row
    payload = payload_fields(message.body, "auto", bytes_max) if bytes_max else {}
    return {**row, "properties": shown_properties(message.header), **payload}
