"""Publish messages, and fetch or drop messages of queues, for operators."""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from collections.abc import Iterable
from dataclasses import field
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

from broker.administration.deciding import decided
from broker.amqp.content_header import facts_of
from broker.amqp.header_edit import edit_header, encode_header
from broker.amqp.header_facts import MISSING
from broker.core.auth.users import User
from broker.core.message.message import Envelope, Message, further_keys
from broker.core.moving.placement import Outcome, place_message, to_exchange, to_queue
from broker.core.moving.walk import Walk, is_expired
from broker.core.publishing.retainer import check_retained
from broker.core.queue.level import Level
from broker.core.queue.queue import Queue
from broker.core.session.publication import check_user_id
from broker.delivery.engine import Engine
from broker.delivery.queue_messages import Peeked, load
from broker.event_log import get_logger
from broker.operations.destination import destination_json, destination_of, queue_named
from broker.operations.operated_broker import OperatedBroker
from broker.operations.operation import Operation
from broker.operations.request import Asker, OfQueue, OperationRefused, Range, parameters
from broker.operations.rights import check_destination, of_queue
from broker.operations.rows import message_row
from broker.slots.slot import Slot

_log = get_logger()

FETCH_MAX: Final = 1000
FETCH_BYTES_MAX: Final = 32 << 20  # headers and bodies in one answer, approximately
PUBLISH_AT_ONCE: Final = 100  # messages between two turns of the loop
DROPPED_AT_ONCE: Final = 500  # messages between two turns of the loop
DROPPED_AT_ONCE_BYTES: Final = 8 << 20


class Fetched(NamedTuple):
    """A fetched message; it is unacked until it is settled or requeued."""

    level: Level
    slot: Slot
    place: int
    message: Message
    redelivered: bool


async def fetch(engine: Engine, queue: Queue, count: int, bytes_max: int, fetched: list[Fetched]) -> None:
    """Fetch ready messages until `fetched` contains `count`, or this call has fetched `bytes_max` bytes, or no more are
    ready. Fetched messages are unacked. Expired messages are skipped. Raises: as `load`.
    """
    walk = Walk(queue)
    remaining_bytes = bytes_max
    clock = engine.vhost.ports.clock
    while len(fetched) < count and remaining_bytes > 0 and (found := walk.find()) is not None:
        level, slot, indexes = found
        if slot.contents is None:
            await load(engine.reader, engine.committer, level, slot)
            continue
        for index in indexes:
            if len(fetched) == count or remaining_bytes <= 0:
                break
            walk.advance_past(slot, index)
            message: Message | None = slot.contents[index]
            if message is None or is_expired(queue, message, clock.now_ms):
                continue
            level.manager.pick(slot, [index])
            fetched.append(Fetched(level, slot, index, message, slot.redelivered(index)))
            remaining_bytes -= len(message.header) + len(message.body)
    if queue.timed and not queue.deleted:
        queue.check_expiry()  # another message may be at the head now


def settle(engine: Engine, fetched: Iterable[Fetched]) -> None:
    """Settle fetched messages."""
    for (level, slot), indexes in _by_slot(fetched).items():
        level.settle(slot, indexes)
    engine.log_settled()


def requeue(engine: Engine, fetched: Iterable[Fetched]) -> None:
    """Return fetched messages to their places in the queue, marked as redelivered."""
    for (level, slot), indexes in _by_slot(fetched).items():
        level.requeue(slot, indexes, failed=False)
    engine.log_settled()


def _by_slot(fetched: Iterable[Fetched]) -> dict[tuple[Level, Slot], list[int]]:
    groups: dict[tuple[Level, Slot], list[int]] = {}
    for one in fetched:
        groups.setdefault((one.level, one.slot), []).append(one.place)
    return groups


async def drop(engine: Engine, queue: Queue, limit: int) -> int:
    """Drop up to `limit` ready messages from the head of a queue, and return their number. Between two steps, consumers
    may receive messages. Raises: as `fetch` and `decided`.
    """
    dropped = 0
    while dropped < limit:
        await decided(partial(queue.prepare_for, "get", None))
        fetched: list[Fetched] = []
        try:
            await fetch(engine, queue, min(limit - dropped, DROPPED_AT_ONCE), DROPPED_AT_ONCE_BYTES, fetched)
        except BaseException:
            requeue(engine, fetched)
            raise
        if not fetched:
            break
        settle(engine, fetched)
        dropped += len(fetched)
        await asyncio.sleep(0)
    return dropped


@parameters
class Publish:
    """Messages with the same properties. Shapes: `destination_of` parses `to`; `bodies` are in base64."""

    to: str
    vhost: str = "/"
    properties: dict[str, Any] = field(default_factory=dict)
    bodies: list[str] = field(default_factory=list)


@parameters
class Get(OfQueue):
    """The number of messages to fetch from a queue, and whether to requeue them."""

    count: Annotated[int, Range(1, FETCH_MAX)] = 1
    requeue: bool = False


def _may_publish(broker: OperatedBroker, user: User, asked: Publish) -> None:
    check_destination(broker, user, broker.vhost(asked.vhost), asked.to)
    check_user_id(user, asked.properties.get("user_id"))


async def publish(broker: OperatedBroker, asked: Publish, asker: Asker) -> dict[str, Any]:
    """Publish messages to a queue or through an exchange. They are refused while an alarm blocks publishers."""
    vhost = broker.vhost(asked.vhost)
    committer = broker.engine(vhost).committer  # the vhost may be deleted in the meantime
    destination, key = destination_of(vhost, asked.to)
    properties, check = asked.properties, asker.check_publish(vhost)
    bodies = [body_of(text) for text in asked.bodies]
    if alarms := broker.alarms:
        raise OperationRefused(f"the {' and the '.join(alarms)} alarm blocks publishing")
    if isinstance(destination, Queue):
        find_placement, envelope = to_queue(destination), Envelope("", destination.name)
    else:
        find_placement, envelope = to_exchange(vhost, destination, None), Envelope(destination.name, key or "")
    count = dict.fromkeys(Outcome, 0)
    retainer = vhost.retainer
    for number, body in enumerate(bodies, 1):
        header = encode_header(properties, len(body))
        known = facts_of(header)
        if known.fault is not None:
            raise OperationRefused(known.fault)
        if not isinstance(destination, Queue):
            check(destination, [envelope.key, *further_keys(known)])
        retained = check_retained(retainer, envelope, known.retain)
        if retained and retainer is not None and (lack := retainer.lack_of_room(envelope.key, len(header), len(body))):
            raise OperationRefused(lack)
        message = Message(envelope, header, body, 0, known, vhost.ports.clock.now_ms)
        placement = find_placement(message)
        assert placement is not None, "only a moved message can stay where it is"
        if known.bcc is not MISSING:
            bare = edit_header(header, drop_headers=("BCC",))
            shown = find_placement(Message(envelope, bare, body, 0, facts_of(bare), message.timestamp_ms))
            assert shown is not None, "only a moved message can stay where it is"
            queues = [queue for queue in placement.queues if not queue.is_overlay or queue in shown.queues]
            placement = placement._replace(header=bare, facts=shown.facts, queues=queues)
        outcome = place_message(vhost, placement, body)
        if retained and retainer is not None:
            retainer.retain(envelope.key, header, body)
            outcome = Outcome.ACCEPTED if outcome is Outcome.UNROUTABLE else outcome
        if outcome is not None:
            count[outcome] += 1
        if number % PUBLISH_AT_ONCE == 0:
            await asyncio.sleep(0)
    await committer.drain()
    return {
        "published": count[Outcome.ACCEPTED],
        "unroutable": count[Outcome.UNROUTABLE],
        "refused": count[Outcome.REFUSED],
        "to": destination_json(destination, key),
    }


async def get(broker: OperatedBroker, asked: Get, asker: Asker) -> dict[str, int]:
    """Send messages of a queue to the client. Requeue them if it does not accept them, or with `requeue`."""
    vhost = broker.vhost(asked.vhost)
    queue, engine = queue_named(vhost, asked.queue), broker.engine(vhost)
    fetched: list[Fetched] = []
    try:
        while len(fetched) < asked.count and (left_bytes := FETCH_BYTES_MAX - sum(map(size_of, fetched))) > 0:
            before = len(fetched)
            await decided(partial(queue.prepare_for, "get", None))
            await fetch(engine, queue, asked.count, left_bytes, fetched)
            if len(fetched) == before:
                break
        asker.write_progress({"messages": [_row(one) for one in fetched]})
        if await asker.accepted() and not asked.requeue:
            settle(engine, fetched)
            _log.info("messages.fetched", vhost=vhost.name, queue=queue.name, messages=len(fetched))
            fetched = []
    finally:
        requeue(engine, fetched)
    await engine.committer.drain()
    return {"messages": queue.ready}


def size_of(fetched: Fetched) -> int:
    """Return the number of bytes of a message's header and body."""
    return len(fetched.message.header) + len(fetched.message.body)


def body_of(text: str) -> bytes:
    """Return a body from base64. Raises: OperationRefused."""
    try:
        return b64decode(text, validate=True)
    except binascii.Error:
        raise OperationRefused("a body should be base64") from None


def _row(fetched: Fetched) -> dict[str, Any]:
    level, slot, index, message, redelivered = fetched
    envelope = message.envelope
    peeked = Peeked(
        level.message_id(slot, index),
        level.priority,
        envelope.exchange,
        envelope.key,
        message.header,
        message.body,
        redelivered,
    )
    return message_row(peeked, len(message.body))


OPERATIONS: Final[dict[str, Operation[Any]]] = {
    "publish": Operation(publish, Publish, _may_publish, asks_database=True),
    "get": Operation(get, Get, of_queue("read"), asks_database=True),
}
