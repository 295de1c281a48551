"""`unacked`: the unacked messages of a queue, who holds each of them, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from broker.net.control_request import ControlRefused, Request, Verb
from broker.net.control_verbs.message_row import body_fields, properties_row
from broker.net.control_verbs.refusing import vhost_of

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.core.queue.consumer import Consumer
    from broker.core.queue.queue import Queue
    from broker.core.queue.unacked import Run
    from broker.core.session.basic import BasicSession
    from broker.core.session.channel import SessionOfChannel
    from broker.core.session.connection import SessionOfConnection
    from broker.net.listener import Listener

__all__ = ["AskNodes", "answering", "unacked_verbs"]

COUNT_MAX: Final = 1000
BODIES_BYTES_MAX: Final = 32 << 20  # in one answer
SESSIONS_AT_ONCE: Final = 100  # that are looked at between two turns of the loop

AskNodes: TypeAlias = "Callable[[Mapping[str, Any]], Awaitable[list[Any]]]"
"""Asks the other nodes of a cluster for the rows of their clients."""


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


def unacked_verbs(administration: Administration, listener: Listener, ask_nodes: AskNodes | None) -> dict[str, Verb]:
    """Return the verb. `ask_nodes` is None for a broker that stands alone."""

    async def unacked(request: Request) -> list[dict[str, Any]]:
        vhost, name = vhost_of(request, administration), request.text("queue")
        queue = vhost.queues.get(name)
        if queue is None:
            raise ControlRefused(f"no queue '{name}' in vhost '{vhost.name}'")
        count = request.integer("count", COUNT_MAX, 0, COUNT_MAX)
        body_bytes = min(request.integer("body_bytes", 0), BODIES_BYTES_MAX // max(count, 1))
        held: list[_Held] = []
        for place, session in enumerate(listener.sessions(), 1):
            if session.vhost is vhost:
                held += _held_by(session, queue)
            if place % SESSIONS_AT_ONCE == 0:
                await asyncio.sleep(0)
        held.sort(key=lambda one: one.age_rank)
        found = list(_rows(held, count, vhost.ports.clock.now_ms, body_bytes))
        if ask_nodes is not None and not request.flag("local"):
            asked = {"vhost": vhost.name, "queue": name, "count": count, "body_bytes": body_bytes}
            for answer in await ask_nodes(asked):
                found += [{**row, "node": answer["node"]} for row in answer["rows"]]
            found.sort(key=lambda row: -row["age_ms"])
        return found[:count]

    return {"unacked": unacked}


def answering(verbs: Mapping[str, Verb], node: str) -> Callable[[Mapping[str, Any]], Awaitable[Any]]:
    """Return what answers the question of another node: what clients of this one hold."""

    async def answer(asked: Mapping[str, Any]) -> dict[str, Any] | None:
        try:
            rows = await verbs["unacked"](Request({**asked, "local": True}))
        except ControlRefused:  # the queue was deleted, for instance
            return None
        return {"node": node, "rows": rows}

    return answer


def _held_by(session: SessionOfConnection, queue: Queue) -> Iterator[_Held]:
    """Yield what the channels of a connection hold of a queue."""
    streams = queue.streams
    for _number, channel in sorted(session.connection.channels.items()):
        basic = cast("SessionOfChannel", channel.session).basic
        for run in basic.unacked.runs:
            if run.left and any(run.stream is stream for stream in streams):
                yield _Held(run, basic, session)


def _rows(held: Sequence[_Held], count: int, now_ms: int, body_bytes: int) -> Iterator[dict[str, Any]]:
    left = count
    for one in held:
        for tag in one.run.tags():
            if not left:
                return
            left -= 1
            yield _row(one, tag, now_ms, body_bytes)


def _row(held: _Held, tag: int, now_ms: int, body_bytes: int) -> dict[str, Any]:
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
        "properties": None if message is None else properties_row(message.header),
    }
    return row if message is None else row | body_fields(message.body, body_bytes)
