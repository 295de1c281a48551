"""Drains: clients settle their messages and receive no new ones, so that a deployment does not lose work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Annotated, Any, Final

from broker.core.queue.consumer import Consumer
from broker.core.session.connection import SessionOfConnection
from broker.event_log import get_logger
from broker.operations.operated_broker import OperatedBroker
from broker.operations.operation import Operation
from broker.operations.request import Asker, OperationRefused, Range, parameters

TIMEOUT_S: Final = 60
TIMEOUT_MAX_S: Final = 86_400
POLL_S: Final = 0.05
PROGRESS_INTERVAL_S: Final = 1.0
REASON: Final = "the broker is being drained"

_log = get_logger()


@parameters
class Drain:
    """The target of a drain: the connections of a given name, the consumers of a queue, or by default all clients."""

    connection: str | None = None
    queue: str | None = None
    vhost: str = "/"
    timeout_s: Annotated[int, Range(0, TIMEOUT_MAX_S)] = TIMEOUT_S
    reason: str = REASON


async def drain(broker: OperatedBroker, asked: Drain, asker: Asker) -> dict[str, Any]:
    """Let clients settle their messages, then close their connections or, for a queue, only cancel its consumers.
    Messages that are still unacked when the time is up are requeued. During the drain, nothing is delivered to the
    clients except replies that they wait for. If the requester disconnects, deliveries resume unless another drain is
    in progress.
    """
    if asked.queue is not None:
        if asked.connection is not None:
            raise OperationRefused("name a connection or a queue, not both")
        return await _drain_queue(broker, asked, asker)

    def sessions() -> list[SessionOfConnection]:
        return [
            session
            for session in broker.sessions()
            if not session.peer.inside and asked.connection in (None, session.name)
        ]

    if asked.connection is not None and not sessions():
        raise OperationRefused(f"no connection '{asked.connection}'")

    drained: dict[SessionOfConnection, int] = {}  # each with its `unsettled` count before this drain

    def unacked() -> int:
        found = sessions()
        for session in found:
            if session not in drained:
                drained[session] = session.unsettled
                session.drain()
        return sum([session.unacked for session in found])

    _log.info("clients.draining", conn=asked.connection, unacked=unacked())
    try:
        remaining = await _settled(unacked, asked.timeout_s, asker)
    except BaseException:  # the requester has disconnected
        for session in drained:
            session.end_drain()
        raise
    found = sessions()
    remaining += sum([session.unsettled - before for session, before in drained.items()])
    cancelled = 0
    for session in found:
        cancelled += session.cancel_consumers()
        session.force_close(asked.reason)
    _log.info("clients.drained", conn=asked.connection, closed=len(found), cancelled=cancelled, unacked=remaining)
    return {"closed": len(found), "cancelled": cancelled, "unacked": remaining}


async def _drain_queue(broker: OperatedBroker, asked: Drain, asker: Asker) -> dict[str, Any]:
    assert asked.queue is not None
    _, queue = broker.queue(asked.vhost, asked.queue)
    consumers = [consumer for consumer in queue.consumers if isinstance(consumer, Consumer)]
    for consumer in consumers:
        consumer.shut()
    _log.info("queue.draining", vhost=asked.vhost, queue=asked.queue, consumers=len(consumers))
    try:
        remaining = await _settled(lambda: sum([consumer.unacked for consumer in consumers]), asked.timeout_s, asker)
    except BaseException:  # the requester has disconnected
        for consumer in _staying(consumers):
            consumer.open()
        raise
    staying = _staying(consumers)
    for consumer in staying:
        consumer.session.time_out(consumer, consumer.session.unacked.last_tag)
    fields = {"cancelled": len(staying), "unacked": remaining}
    _log.info("queue.drained", vhost=asked.vhost, queue=asked.queue, **fields)
    return {"closed": 0, **fields}


def _staying(consumers: Collection[Consumer]) -> list[Consumer]:
    """Return the consumers that their clients have not cancelled."""
    return [consumer for consumer in consumers if consumer.session.consumers.get(consumer.tag) is consumer]


async def _settled(unacked: Callable[[], int], timeout_s: int, asker: Asker) -> int:
    """Wait until no message is unacked or the time is up, reporting the count. Return the number still unacked."""
    loop = asyncio.get_running_loop()
    begun = report_at = loop.time()
    while (count := unacked()) and loop.time() < begun + timeout_s:
        if loop.time() >= report_at:
            report_at += PROGRESS_INTERVAL_S
            await asker.send_progress({"waits_for": "acknowledgements", "count": count})
        await asyncio.sleep(POLL_S)
    return count


OPERATIONS: Final[dict[str, Operation[Any]]] = {"drain": Operation(drain, Drain)}
