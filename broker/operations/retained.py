"""Operations on the retained messages of a vhost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final

from broker.administration.slices import in_slices
from broker.core.auth.users import User
from broker.core.message.message import Message
from broker.core.publishing.retainer import Retainer
from broker.core.queue.kinds import RETAINED_NAME
from broker.core.vhost import Vhost
from broker.event_log import get_logger
from broker.operations.operated_broker import OperatedBroker
from broker.operations.operation import Operation
from broker.operations.request import Asker, OperationRefused, Range, parameters
from broker.operations.rows import body_fields, properties_row
from broker.tasks import called_back

_log = get_logger()

LIMIT_MAX: Final = 10_000
MESSAGES_AT_ONCE: Final = 64  # read or deleted between two turns of the loop
VISITS_AT_ONCE: Final = 4096  # nodes of the index visited between two turns
BODIES_BYTES_MAX: Final = 32 << 20  # in one answer


@parameters
class OfRetained:
    """The retained messages whose topics match an MQTT filter."""

    filter: str = "#"
    vhost: str = "/"


@parameters
class ListRetained(OfRetained):
    """The number of messages to show, and how much of each body; 0 bytes leave out the properties, too."""

    limit: Annotated[int, Range(1, LIMIT_MAX)] = 1000
    body_bytes: Annotated[int, Range()] = 0


async def list_retained(broker: OperatedBroker, asked: ListRetained, _asker: Asker) -> dict[str, Any]:
    """Return up to `limit` messages that match a filter, sorted by topic, and the totals of the vhost."""
    vhost = broker.vhost(asked.vhost)
    retainer = _retainer(vhost)
    keys = await _matching(retainer, asked.filter, asked.limit + 1)
    now_ms = vhost.ports.clock.now_ms
    body_bytes = min(asked.body_bytes, BODIES_BYTES_MAX // asked.limit)
    rows: list[dict[str, Any]] = []
    async for start in in_slices(range(0, min(len(keys), asked.limit), MESSAGES_AT_ONCE), 1):
        messages = await _read(retainer, keys[start : min(start + MESSAGES_AT_ONCE, asked.limit)])
        rows += [_row(retainer, message, now_ms, body_bytes) for message in messages]
    rows.sort(key=lambda row: str(row["topic"]))
    return {
        "rows": rows,
        "truncated": len(keys) > asked.limit,
        "messages": len(retainer),
        "bytes": retainer.size_bytes,
    }


async def delete_retained(broker: OperatedBroker, asked: OfRetained, _asker: Asker) -> dict[str, int]:
    """Delete the retained messages that match a filter, and return their number."""
    vhost = broker.vhost(asked.vhost)
    retainer, committer = _retainer(vhost), broker.engine(vhost).committer
    keys = await _matching(retainer, asked.filter, None)
    async for key in in_slices(keys, MESSAGES_AT_ONCE):
        retainer.retain(key, b"", b"")
    _log.info("retained.deleted", vhost=vhost.name, filter=asked.filter, messages=len(keys))
    await committer.drain()
    return {"messages": len(keys)}


def _retainer(vhost: Vhost) -> Retainer:
    if vhost.retainer is None:
        raise OperationRefused("nothing is retained here: MQTT is off (mqtt.enabled), or this is a node of a cluster")
    return vhost.retainer


async def _matching(retainer: Retainer, topic_filter: str, limit: int | None) -> list[str]:
    """Return up to `limit` keys that match a filter. Raises: ValueError for an invalid filter."""
    keys: list[str] = []
    for visits, key in enumerate(retainer.find(topic_filter), 1):
        if key is not None:
            keys.append(key)
            if len(keys) == limit:
                break
        if visits % VISITS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return keys


async def _read(retainer: Retainer, keys: Sequence[str]) -> list[Message]:
    messages: list[Message] = []
    return await called_back(lambda end: retainer.read(keys, messages.append, partial(end, messages)))


def _row(retainer: Retainer, message: Message, now_ms: int, body_bytes: int) -> dict[str, Any]:
    key = message.envelope.key
    expires_ms = retainer.expires_ms(key)
    row: dict[str, Any] = {
        "topic": retainer.topic(key),
        "routing_key": key,
        "bytes": len(message.body),
        "age_ms": max(0, now_ms - message.timestamp_ms),
        "expires_in_ms": max(0, expires_ms - now_ms) if expires_ms else None,
    }
    if body_bytes:
        row |= {"properties": properties_row(message.header), **body_fields(message.body, body_bytes)}
    return row


def _may(broker: OperatedBroker, user: User, asked: OfRetained) -> None:
    """Check that a user may read, and so delete, the retained messages. Raises: ChannelError (403)."""
    broker.permissions.check(user, broker.vhost(asked.vhost).queue_resource(RETAINED_NAME), "read")


OPERATIONS: Final[dict[str, Operation[Any]]] = {
    "list_retained": Operation(list_retained, ListRetained, _may),
    "delete_retained": Operation(delete_retained, OfRetained, _may),
}
