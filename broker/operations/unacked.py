"""`unacked`: the unacked messages of a queue, with their consumers and ages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Final, NamedTuple, cast

from broker.administration.slices import in_slices
from broker.core.queue.consumer import Consumer
from broker.core.queue.queue import Queue
from broker.core.queue.unacked import Run
from broker.core.session.basic import BasicSession
from broker.core.session.channel import SessionOfChannel
from broker.core.session.connection import SessionOfConnection
from broker.operations.operated_broker import OperatedBroker
from broker.operations.operation import Operation
from broker.operations.request import Asker, OfQueue, OperationRefused, Range, Request, parameters, read
from broker.operations.rights import of_queue
from broker.operations.rows import body_fields, properties_row, user_name

COUNT_MAX: Final = 1000
BODIES_BYTES_MAX: Final = 32 << 20  # in one answer
SESSIONS_AT_ONCE: Final = 100  # examined between two turns of the loop


class _Held(NamedTuple):
    """Unacked messages of one channel, delivered to one consumer or by basic.get."""

    run: Run
    basic: BasicSession
    session: SessionOfConnection

    @property
    def age_rank(self) -> tuple[bool, int]:
        """A sort key, the oldest first; the latest deliveries have no time yet and are last."""
        since_ms = self.basic.held_since_ms(self.run.low)
        return since_ms is None, since_ms or 0


@parameters
class Unacked(OfQueue):
    """The number of messages to show, and how much of each body; with `local`, only messages of this node."""

    count: Annotated[int, Range(0, COUNT_MAX)] = COUNT_MAX
    body_bytes: Annotated[int, Range()] = 0
    local: bool = False


async def unacked(broker: OperatedBroker, asked: Unacked, _asker: Asker) -> list[dict[str, Any]]:
    """Return up to `count` unacked messages of a queue, the oldest deliveries first."""
    vhost, queue = broker.queue(asked.vhost, asked.queue)
    count = asked.count
    body_bytes = min(asked.body_bytes, BODIES_BYTES_MAX // max(count, 1))
    held: list[_Held] = []
    async for session in in_slices(broker.sessions(), SESSIONS_AT_ONCE):
        if session.vhost is vhost:
            held += _held_by(session, queue)
    held.sort(key=lambda one: one.age_rank)
    found = list(_rows(held, count, vhost.ports.clock.now_ms, body_bytes))
    if broker.ask_nodes is not None and not asked.local:
        question = {"vhost": vhost.name, "queue": queue.name, "count": count, "body_bytes": body_bytes}
        for answer in await broker.ask_nodes(question):
            found += [{**row, "node": answer["node"]} for row in answer["rows"]]
        found.sort(key=lambda row: -row["age_ms"])
    return found[:count]


def answering(broker: OperatedBroker, node: str) -> Callable[[Mapping[str, Any]], Awaitable[Any]]:
    """Return the function that answers other nodes with the unacked messages of this node's clients."""

    async def answer(question: Mapping[str, Any]) -> dict[str, Any] | None:
        try:
            asked = read(Unacked, Request({**question, "local": True}))
            rows = await unacked(broker, asked, Asker())
        except OperationRefused:  # the queue was deleted, for instance
            return None
        return {"node": node, "rows": rows}

    return answer


def _held_by(session: SessionOfConnection, queue: Queue) -> Iterator[_Held]:
    """Yield the unacked messages of a queue on the channels of a connection."""
    levels = queue.levels
    for _number, channel in sorted(session.connection.channels.items()):
        basic = cast("SessionOfChannel", channel.session).basic
        for run in basic.unacked.runs:
            if run.left and any(run.level is level for level in levels):
                yield _Held(run, basic, session)


def _rows(held: Sequence[_Held], count: int, now_ms: int, body_bytes: int) -> Iterator[dict[str, Any]]:
    tags = ((one, tag) for one in held for tag in one.run.tags(one.run.last))
    for one, tag in islice(tags, count):
        yield _row(one, tag, now_ms, body_bytes)


def _row(held: _Held, tag: int, now_ms: int, body_bytes: int) -> dict[str, Any]:
    run, basic, session = held
    index = run.indexes[tag - run.first]
    since_ms = basic.held_since_ms(tag)
    contents = cast("Sequence[Any] | None", run.slot.contents)
    message = None if contents is None else contents[index]  # the slot may be on disk
    row = {
        "id": run.level.message_id(run.slot, index),
        "priority_level": run.level.priority,
        "delivery_tag": tag,
        "age_ms": 0 if since_ms is None else max(0, now_ms - since_ms),
        "redelivered": run.slot.redelivered(index),
        "consumer_tag": None if run.consumer is None else cast("Consumer", run.consumer).tag,
        "connection": session.name,
        "channel": basic.number,
        "user": user_name(session) or None,
        "exchange": None if message is None else message.envelope.exchange,
        "routing_key": None if message is None else message.envelope.key,
        "properties": None if message is None else properties_row(message.header),
    }
    return row if message is None else row | body_fields(message.body, body_bytes)


OPERATIONS: Final[dict[str, Operation[Any]]] = {"unacked": Operation(unacked, Unacked, of_queue("read"))}
