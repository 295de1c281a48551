"""Operations on queues, including exclusive ones, otherwise under the rules for clients."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final

from broker.administration.deciding import decided
from broker.administration.definitions import PAUSED_QUEUE
from broker.amqp.table_writer import encode_table
from broker.core.auth.users import User
from broker.core.names import Resource, is_short_text, refuse_reserved
from broker.core.queue.kinds import TapQueue
from broker.core.queue.level import Level
from broker.core.queue.queue_arguments import with_default_type
from broker.event_log import get_logger
from broker.operations.messages import drop
from broker.operations.operated_broker import OperatedBroker
from broker.operations.operation import MONITORING, Operation
from broker.operations.request import Asker, OfQueue, OperationRefused, Range, parameters
from broker.operations.rights import of_queue
from broker.operations.rows import message_row, slot_count
from broker.slots.slot import Slot
from broker.tasks import called_back

_log = get_logger()

PEEK_MAX: Final = 1000
PEEK_BYTES_MAX: Final = 32 << 20  # bytes of bodies in one answer
SLOT_ROWS_MAX: Final = 10_000  # slots in one answer, which also contains their total number


@parameters
class DeclareQueue(OfQueue):
    """The properties with which a queue is declared."""

    transient: bool = False
    auto_delete: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)


@parameters
class DeleteQueue(OfQueue):
    """The queue to delete, and the conditions."""

    if_unused: bool = False
    if_empty: bool = False


@parameters
class PurgeQueue(OfQueue):
    """The number of messages to drop from the head of a queue; None for all."""

    limit: Annotated[int | None, Range()] = None


@parameters
class ReleaseDelayed(OfQueue):
    """The number of delayed messages to release; None for all."""

    limit: Annotated[int | None, Range(1)] = None


@parameters
class Peek(OfQueue):
    """The number of messages to show, and how much of each body."""

    count: Annotated[int, Range(1, PEEK_MAX)] = 1
    body_bytes: Annotated[int, Range()] = 4096


def check_name(kind: str, name: str) -> None:
    """Check the name of a new queue or exchange. Raises: OperationRefused."""
    if not name or not is_short_text(name) or not name.isprintable():
        article = "an" if kind == "exchange" else "a"
        raise OperationRefused(f"the name of {article} {kind} has 1 to 255 bytes of printable text")


def check_arguments(arguments: dict[str, Any]) -> None:
    """Refuse arguments that no client can send. Raises: OperationRefused."""
    try:
        encode_table(arguments)
    except ValueError as error:
        raise OperationRefused(f"the arguments cannot be encoded: {error}") from None


def check_declare(
    broker: OperatedBroker, user: User, resource: Resource, arguments: dict[str, Any], *, is_new: bool
) -> None:
    """Check that a user may declare a queue or an exchange. Raises: ChannelError (403), OperationRefused."""
    broker.permissions.check(user, resource, "configure")
    if is_new:
        check_arguments(arguments)
        broker.permissions.check_new(user, resource, arguments)


def _may_declare(broker: OperatedBroker, user: User, asked: DeclareQueue) -> None:
    vhost = broker.vhost(asked.vhost)
    is_new = asked.queue not in vhost.queues
    check_declare(broker, user, vhost.queue_resource(asked.queue), asked.arguments, is_new=is_new)


async def declare_queue(broker: OperatedBroker, asked: DeclareQueue, _asker: Asker) -> dict[str, bool]:
    """Declare a queue, and return whether it is new."""
    vhost, name, durable, auto_delete = broker.vhost(asked.vhost), asked.queue, not asked.transient, asked.auto_delete
    check_name("queue", name)
    check_arguments(asked.arguments)
    default, flags = vhost.default_queue_type, {"durable": durable, "auto_delete": auto_delete}
    arguments = dict(with_default_type(asked.arguments, default, exclusive=False, **flags))
    made = name not in vhost.queues
    if made:
        refuse_reserved("queue", name)
    await decided(lambda: vhost.queues.declare(name, arguments=arguments, **flags))
    if made:
        _log.info("queue.declared", vhost=vhost.name, queue=name, durable=durable, arguments=arguments)
    await broker.engine(vhost).committer.drain()
    return {"made": made}


async def delete_queue(broker: OperatedBroker, asked: DeleteQueue, _asker: Asker) -> dict[str, int]:
    """Delete a queue, and return how many ready messages it had."""
    vhost, queue = broker.queue(asked.vhost, asked.queue)
    count = 0

    def delete() -> None:
        nonlocal count
        owner = queue.exclusive_owner
        found = vhost.queues.deletable(queue.name, owner, if_unused=asked.if_unused, if_empty=asked.if_empty)
        if found is not None:  # None in a repeated call, once all nodes of a cluster have deleted it
            count = found.counts()[0]
            vhost.queues.drop(found)

    await decided(delete)
    _log.info("queue.deleted", vhost=vhost.name, queue=queue.name, messages=count)
    await broker.engine(vhost).committer.drain()
    return {"messages": count}


async def purge_queue(broker: OperatedBroker, asked: PurgeQueue, _asker: Asker) -> dict[str, int]:
    """Drop the ready messages of a queue, up to `limit` from its head, and return their number."""
    vhost, queue = broker.queue(asked.vhost, asked.queue)
    if isinstance(queue, TapQueue):
        raise OperationRefused(f"queue '{queue.name}' in vhost '{vhost.name}' belongs to a tap: remove that instead")
    if queue.is_overlay:
        raise OperationRefused(f"queue '{queue.name}' in vhost '{vhost.name}' belongs to the overlay")
    engine = broker.engine(vhost)
    if asked.limit is not None:
        count = await drop(engine, queue, asked.limit)
    else:
        await decided(partial(queue.prepare_for, "purge", None))
        count = await called_back(queue.purge)  # over several turns if the queue is long
    _log.info("queue.purged", vhost=vhost.name, queue=queue.name, messages=count)
    await engine.committer.drain()
    return {"messages": count}


def release_delayed(broker: OperatedBroker, asked: ReleaseDelayed, _asker: Asker) -> dict[str, int]:
    """Release delayed messages before they are due, the next due first, and return their number."""
    vhost, queue = broker.queue(asked.vhost, asked.queue)
    holding = vhost.delays.of(queue)
    count = 0 if holding is None else holding.release_early(holding.count if asked.limit is None else asked.limit)
    _log.info("queue.released", vhost=vhost.name, queue=queue.name, messages=count)
    return {"messages": count}


async def pause_queue(broker: OperatedBroker, asked: OfQueue, _asker: Asker) -> None:
    """Pause the deliveries of a queue until it is resumed. The pause is a parameter of the vhost, so it survives
    restarts and applies on all nodes of a cluster.
    """
    vhost, queue = broker.queue(asked.vhost, asked.queue)
    if queue.is_internal:
        name = f"queue '{queue.name}' in vhost '{vhost.name}'"
        raise OperationRefused(f"{name} is the broker's own: it cannot be paused")
    key = (vhost.name, PAUSED_QUEUE, queue.name)
    if key not in broker.administration.parameters:
        await broker.administration.change(
            lambda draft: draft.set_parameter(key, {}), "queue.paused", vhost=vhost.name, queue=queue.name
        )


async def resume_queue(broker: OperatedBroker, asked: OfQueue, _asker: Asker) -> None:
    """End the pause of a queue, even if the queue was deleted."""
    vhost, name = broker.vhost(asked.vhost), asked.queue
    if name not in vhost.queues and name not in vhost.queues.paused:
        raise OperationRefused(f"no queue '{name}' in vhost '{vhost.name}'")
    key = (vhost.name, PAUSED_QUEUE, name)
    if key in broker.administration.parameters:
        await broker.administration.change(
            lambda draft: draft.drop_parameter(key), "queue.resumed", vhost=vhost.name, queue=name
        )


async def peek(broker: OperatedBroker, asked: Peek, _asker: Asker) -> list[dict[str, Any]]:
    """Return the next messages of a queue; they stay ready."""
    vhost, queue = broker.queue(asked.vhost, asked.queue)
    body_bytes = min(asked.body_bytes, PEEK_BYTES_MAX // asked.count)
    found = await broker.engine(vhost).messages(queue).peek(asked.count)
    return [message_row(message, body_bytes) for message in found]


def slots(broker: OperatedBroker, asked: OfQueue, _asker: Asker) -> dict[str, Any]:
    """Return up to `SLOT_ROWS_MAX` slots of a queue, beginning with the highest level."""
    vhost, queue = broker.queue(asked.vhost, asked.queue)
    rows = (slot_row(level, slot) for level in reversed(queue.all_levels) for slot in level.manager.slots.values())
    return {
        "queue": queue.name,
        "vhost": vhost.name,
        "ready": queue.ready,
        "unacked": queue.unacked,
        "levels": len(queue.levels),
        "slot_count": slot_count(queue),
        "slots": list(islice(rows, SLOT_ROWS_MAX)),
    }


def slot_row(level: Level, slot: Slot) -> dict[str, Any]:
    """Return a slot as JSON. Shapes: its message ids are `first` to `end` - 1."""
    return {
        "level": level.priority,
        "first": slot.first,
        "end": slot.end,
        "state": slot.fill.value,
        "owner": None if slot.owner is None else f"{slot.owner.node}/{slot.owner.worker}",
        "settled": slot.acks.count,
        "bytes": slot.bytes,
        "resident": slot.resident,
    }


OPERATIONS: Final[dict[str, Operation[Any]]] = {
    "declare_queue": Operation(declare_queue, DeclareQueue, _may_declare, asks_database=True),
    "delete_queue": Operation(delete_queue, DeleteQueue, of_queue("configure"), asks_database=True),
    "purge_queue": Operation(purge_queue, PurgeQueue, of_queue("read"), asks_database=True),
    "release_delayed": Operation(
        release_delayed,
        ReleaseDelayed,
        of_queue("read"),
        not_in_cluster="in a cluster, delayed messages cannot be released before their time",
    ),
    "pause_queue": Operation(pause_queue, OfQueue, of_queue("configure")),
    "resume_queue": Operation(resume_queue, OfQueue, of_queue("configure")),
    "peek": Operation(peek, Peek, of_queue("read"), asks_database=True),
    "slots": Operation(slots, OfQueue, tag=MONITORING),
}
