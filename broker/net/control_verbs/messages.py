"""Publishes messages and takes them out of queues, for an operator."""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.administration.deciding import decided
from broker.administration.messages.fetch import Fetched, fetch, requeue, settle
from broker.amqp.content_header import facts_of
from broker.amqp.header_edit import edit_header
from broker.amqp.header_facts import MISSING
from broker.amqp.header_writer import encode_header
from broker.core.message.carbon_copies import further_keys
from broker.core.message.message import Envelope, Message
from broker.core.moving.course import Outcome, land, to_exchange, to_queue
from broker.core.queue.queue import Queue
from broker.delivery.queue_messages import Peeked
from broker.event_log import get_logger
from broker.net.control_request import ControlRefused, Request, Verb
from broker.net.control_verbs.destination import destination_of, queue_named, told
from broker.net.control_verbs.message_row import message_row
from broker.net.control_verbs.refusing import vhost_of

if TYPE_CHECKING:
    from broker.administration.administration import Administration

__all__ = ["message_verbs"]

_log = get_logger()

FETCH_MAX: Final = 1000
FETCH_BYTES_MAX: Final = 32 << 20  # of bodies in one answer
PUBLISH_AT_ONCE: Final = 100  # messages between two turns of the loop


def message_verbs(administration: Administration, facts: Callable[[], Mapping[str, Any]]) -> dict[str, Verb]:
    """Return the verbs. `facts` has the active alarms, which block an operator like any publisher."""

    async def publish(request: Request) -> dict[str, Any]:
        vhost = vhost_of(request, administration)
        committer = administration.vhosts.engines[vhost.name].committer
        destination, key = destination_of(vhost, request.text("to"))
        properties = request.table("properties") if request.has("properties") else {}
        bodies = [body_of(text) for text in request.texts("bodies")]
        alarms = [alarm["kind"] for alarm in facts()["alarms"]]
        if alarms:
            raise ControlRefused(f"the {' and the '.join(alarms)} alarm blocks publishing")
        if isinstance(destination, Queue):
            course, envelope = to_queue(destination), Envelope("", destination.name)
        else:
            course, envelope = to_exchange(vhost, destination, None), Envelope(destination.name, key or "")
        count = dict.fromkeys(Outcome, 0)
        for number, body in enumerate(bodies, 1):
            header = encode_header(properties, len(body))
            known = facts_of(header)
            if known.fault is not None:
                raise ControlRefused(known.fault)
            if not isinstance(destination, Queue):
                request.check_publish(destination, [envelope.key, *further_keys(known)])
            message = Message(envelope, header, body, 0, known, vhost.ports.clock.now_ms)
            landing = course(message)
            assert landing is not None, "what is published has nowhere to stay"
            if known.bcc is not MISSING:
                bare = edit_header(header, drop_headers=("BCC",))
                shown = course(Message(envelope, bare, body, 0, facts_of(bare), message.timestamp_ms))
                assert shown is not None, "what is published has nowhere to stay"
                queues = [queue for queue in landing.queues if not queue.is_stream or queue in shown.queues]
                landing = landing._replace(header=bare, facts=shown.facts, queues=queues)
            outcome = land(vhost, landing, body)
            if outcome is not None:
                count[outcome] += 1
            if number % PUBLISH_AT_ONCE == 0:
                await asyncio.sleep(0)
        await committer.drain()
        return {
            "published": count[Outcome.TAKEN],
            "unroutable": count[Outcome.UNROUTABLE],
            "refused": count[Outcome.REFUSED],
            "to": told(destination, key),
        }

    async def get(request: Request) -> dict[str, int]:
        vhost = vhost_of(request, administration)
        queue = queue_named(vhost, request.text("queue"))
        count, back = request.integer("count", 1, 1, FETCH_MAX), request.flag("requeue")
        engine = administration.vhosts.engines[vhost.name]
        fetched: list[Fetched] = []
        try:
            while len(fetched) < count and sum(map(size_of, fetched)) < FETCH_BYTES_MAX:
                before = len(fetched)
                await decided(partial(queue.before, "get", None))
                await fetch(engine, queue, count, FETCH_BYTES_MAX, fetched)
                if len(fetched) == before:
                    break
            request.asker.tell({"messages": [_row(one) for one in fetched]})
            if await request.asker.accepted() and not back:
                settle(engine, fetched)
                _log.info("messages.fetched", vhost=vhost.name, queue=queue.name, messages=len(fetched))
                fetched = []
        finally:  # messages that the client did not accept return to the queue
            requeue(engine, fetched)
        await engine.committer.drain()
        return {"messages": queue.ready}

    return {"publish": publish, "get": get}


def size_of(fetched: Fetched) -> int:
    """Return the bytes of a message."""
    return len(fetched.message.header) + len(fetched.message.body)


def body_of(text: str) -> bytes:
    """Return a body from base64. Raises: ControlRefused."""
    try:
        return b64decode(text, validate=True)
    except binascii.Error:
        raise ControlRefused("a body should be base64") from None


def _row(fetched: Fetched) -> dict[str, Any]:
    stream, slot, index, message, redelivered = fetched
    envelope = message.envelope
    peeked = Peeked(
        stream.message_id(slot, index),
        stream.level,
        envelope.exchange,
        envelope.key,
        message.header,
        message.body,
        redelivered,
    )
    return message_row(peeked, len(message.body))
