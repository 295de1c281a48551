"""Move messages from one queue to others, and dead letters back to the queues where they died."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Final

from broker.administration.deciding import count_all
from broker.core.auth.users import User
from broker.core.moving.condition import every
from broker.core.moving.move import Move, MoveTally
from broker.core.moving.placement import to_exchange, to_origin, to_queue
from broker.core.queue.queue import Queue
from broker.delivery.engine import Engine
from broker.event_log import get_logger
from broker.operations.destination import destination_json, destination_of, queue_named
from broker.operations.operated_broker import OperatedBroker
from broker.operations.operation import Operation
from broker.operations.request import Asker, OfQueue, OperationRefused, Range, parameters
from broker.operations.rights import check_destination, check_publish
from broker.routing.exchange import Exchange

STEP_MESSAGES: Final = 1000  # examined between two syncs
PENDING_BYTES: Final = 1 << 20  # bytes not yet written to the log; with more, a move waits for the disk
_log = get_logger()

INTO: Final = ("queue", "exchange")


async def carry_out(engine: Engine, move: Move, before_step: Callable[[MoveTally], str]) -> str:
    """Run a move. Once its effects are on disk, return why it ended early, or an empty string.

    Shapes: `before_step` is called before each step, when the previous one is on disk. It returns a reason to end the
        move, or an empty string.
    Raises: the error that has ended the broker or the vhost; in a cluster, BrokerError.
    """
    committer, log, tally = engine.committer, engine.store.log, move.tally
    messages = engine.messages(move.source)
    seen = 0
    while not (reason := before_step(tally)):
        while not move.done and tally.examined - seen < STEP_MESSAGES and log.pending_bytes < PENDING_BYTES:
            committer.check()  # raises if the engine has ended: without its turns, a move would never end
            await messages.move(move)
            engine.log_settled()  # schedule a turn, in which the engine writes and delivers
            await asyncio.sleep(0)
        seen = tally.examined
        await committer.drain()
        if move.done:
            break
    return reason


@parameters
class MoveMessages(OfQueue):
    """The destination of a move, and its messages: those that match all conditions, up to a limit."""

    to: str
    match: list[str] = field(default_factory=list)
    limit: Annotated[int | None, Range(1)] = None


@parameters
class RequeueDeadLetters(OfQueue):
    """Which dead letters to move, and whether to the queues where they died or through their original exchanges."""

    into: str = INTO[0]
    reasons: list[str] = field(default_factory=list)
    died_in: list[str] = field(default_factory=list)
    match: list[str] = field(default_factory=list)
    limit: Annotated[int | None, Range(1)] = None


def _may_move(broker: OperatedBroker, user: User, asked: MoveMessages) -> None:
    """Check the source and the destination; `Asker.check_publish` checks the keys of the messages one by one."""
    vhost = broker.vhost(asked.vhost)
    broker.permissions.check(user, vhost.queue_resource(asked.queue), "read")
    check_destination(broker, user, vhost, asked.to)


async def move(broker: OperatedBroker, asked: MoveMessages, asker: Asker) -> dict[str, Any]:
    """Move messages of a queue to another one, or through an exchange."""
    vhost = broker.vhost(asked.vhost)
    source = queue_named(vhost, asked.queue)
    destination, key = destination_of(vhost, asked.to)
    if destination is source:
        raise OperationRefused(f"queue '{source.name}' cannot be moved to itself")
    single_target = isinstance(destination, Queue)
    if isinstance(destination, Queue):
        find_placement = to_queue(destination)
    else:
        find_placement = to_exchange(vhost, destination, key, asker.check_publish(vhost))
    moving = Move(
        vhost, source, find_placement, wanted=every(asked.match), limit=asked.limit, single_target=single_target
    )
    return await _run(broker, asker, moving, destination_json(destination, key), (source, destination))


def _may_requeue(broker: OperatedBroker, user: User, asked: RequeueDeadLetters) -> None:
    vhost = broker.vhost(asked.vhost)
    broker.permissions.check(user, vhost.queue_resource(asked.queue), "read")
    if asked.into == INTO[0]:
        check_publish(broker, user, vhost, vhost.exchanges[""], ())


async def requeue_dead_letters(broker: OperatedBroker, asked: RequeueDeadLetters, asker: Asker) -> dict[str, Any]:
    """Move dead letters back to the queues where they died, or through the exchanges that they came from."""
    vhost = broker.vhost(asked.vhost)
    source = queue_named(vhost, asked.queue)
    if asked.into not in INTO:
        raise OperationRefused(f"'into' should be {' or '.join(INTO)}")
    find_placement = to_origin(
        vhost,
        into_exchange=asked.into == "exchange",
        reasons=asked.reasons,
        died_in=asked.died_in,
        check=asker.check_publish(vhost),
    )
    moving = Move(vhost, source, find_placement, wanted=every(asked.match), limit=asked.limit)
    return await _run(broker, asker, moving, {"death": asked.into}, (source,))


async def _run(
    broker: OperatedBroker, asker: Asker, move: Move, to: Mapping[str, Any], ends: Sequence[Queue | Exchange]
) -> dict[str, Any]:
    """Run a move. The disk alarm ends it, because moved messages are written to the log again."""
    source, vhost = move.source, move.vhost
    await count_all([source])
    total = source.counts()[0]

    def deleted() -> str:
        return "".join([f"'{end.name}' was deleted" for end in ends if end.deleted][:1])

    def step(tally: MoveTally) -> str:
        asker.write_progress({"looked": tally.examined, "moved": tally.moved, "total": total})
        if broker.administration.closed:
            return "the broker is stopping"
        if "disk" in broker.alarms:
            return "the disk alarm blocks publishing"
        return deleted() or ("interrupted" if asker.interrupted() else "")

    reason = await carry_out(broker.engine(vhost), move, step) or deleted()
    if move.full:
        reason = f"queue '{ends[-1].name}' is full"
    tally = move.tally
    counts = {"moved": tally.moved, "unroutable": tally.unroutable, "refused": tally.refused}
    await count_all([source])
    _log.info("messages.moved", vhost=vhost.name, queue=source.name, to=to, **counts, stopped=reason or None)
    return {**counts, "unwanted": tally.unwanted, "to": to, "left": source.counts()[0], "stopped": reason or None}


OPERATIONS: Final[dict[str, Operation[Any]]] = {
    "move": Operation(move, MoveMessages, _may_move, asks_database=True),
    "requeue_dead_letters": Operation(requeue_dead_letters, RequeueDeadLetters, _may_requeue, asks_database=True),
}
