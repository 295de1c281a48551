"""Deletes queues and exchanges, peeks, closes connections."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.administration.deciding import decided
from broker.event_log import get_logger
from broker.net.control_request import ControlRefused, Request, Verb
from broker.net.control_verbs.message_row import message_row
from broker.net.control_verbs.refusing import vhost_of

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.core.queue.queue import Queue
    from broker.core.vhost import Vhost
    from broker.net.listener import Listener

__all__ = ["resource_verbs"]

_log = get_logger()

PEEK_MAX: Final = 1000
PEEK_BYTES_MAX: Final = 32 << 20  # of bodies in one answer


def resource_verbs(administration: Administration, listener: Listener) -> dict[str, Verb]:
    """Return the verbs. Refusals have the texts that a client gets."""

    def named(request: Request) -> tuple[Vhost, Queue]:
        vhost, name = vhost_of(request, administration), request.text("queue")
        queue = vhost.queues.get(name)
        if queue is None:
            raise ControlRefused(f"no queue '{name}' in vhost '{vhost.name}'")
        vhost.sweep.update(queue)
        return vhost, queue

    async def delete_queue(request: Request) -> dict[str, int]:
        vhost, queue = named(request)
        conditions = {"if_unused": request.flag("if_unused"), "if_empty": request.flag("if_empty")}
        count = 0

        def drop() -> None:
            nonlocal count
            found = vhost.queues.deletable(queue.name, queue.exclusive_owner, **conditions)
            if found is not None:  # it is gone when every node has deleted it
                count = found.counts()[0]
                vhost.queues.drop(found)

        await decided(drop)
        _log.info("queue.deleted", vhost=vhost.name, queue=queue.name, messages=count)
        await administration.vhosts.engines[vhost.name].committer.drain()
        return {"messages": count}

    async def delete_exchange(request: Request) -> None:
        vhost, name = vhost_of(request, administration), request.text("exchange")
        if name not in vhost.exchanges:
            raise ControlRefused(f"no exchange '{name}' in vhost '{vhost.name}'")
        await decided(partial(vhost.exchanges.delete, name, if_unused=request.flag("if_unused")))
        _log.info("exchange.deleted", vhost=vhost.name, exchange=name)
        await administration.vhosts.engines[vhost.name].committer.drain()

    async def look(request: Request) -> list[dict[str, Any]]:
        vhost, queue = named(request)
        count = request.integer("count", 1, 1, PEEK_MAX)
        body_bytes = min(request.integer("body_bytes", 4096), PEEK_BYTES_MAX // count)
        found = await administration.vhosts.engines[vhost.name].messages(queue).peek(count)
        return [message_row(message, body_bytes) for message in found]

    def close_connection(request: Request) -> None:
        name, reason = request.text("name"), request.text("reason", "Closed via command line")
        sessions = [session for session in listener.sessions() if session.name == name]
        if not sessions:
            raise ControlRefused(f"no connection '{name}'")
        for session in sessions:
            session.force_close(reason)
            user = None if session.user is None else session.user.name
            _log.info("connection.force_closed", conn=name, user=user, reason=reason)

    return {
        "delete_queue": delete_queue,
        "delete_exchange": delete_exchange,
        "peek": look,
        "close_connection": close_connection,
    }
