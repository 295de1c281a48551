"""Purges queues: all ready messages, or some from the head."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from broker.administration.deciding import decided
from broker.administration.messages.drop import drop
from broker.event_log import get_logger
from broker.net.control_request import ControlRefused, Request, Verb
from broker.net.control_verbs.refusing import vhost_of

if TYPE_CHECKING:
    from broker.administration.administration import Administration

__all__ = ["purging_verbs"]

_log = get_logger()


def purging_verbs(administration: Administration) -> dict[str, Verb]:
    """Return the verb."""

    async def purge(request: Request) -> dict[str, int]:
        vhost, name = vhost_of(request, administration), request.text("queue")
        queue = vhost.queues.get(name)
        if queue is None:
            raise ControlRefused(f"no queue '{name}' in vhost '{vhost.name}'")
        vhost.sweep.update(queue)
        if queue.is_tap:
            raise ControlRefused(f"queue '{queue.name}' in vhost '{vhost.name}' belongs to a tap: remove that instead")
        if queue.is_stream:
            raise ControlRefused(f"queue '{queue.name}' in vhost '{vhost.name}' belongs to the overlay")
        engine = administration.vhosts.engines[vhost.name]
        if request.has("limit"):
            count = await drop(engine, queue, request.integer("limit", 0))
        else:
            await decided(partial(queue.before, "purge", None))
            purged: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            queue.purge(purged.set_result)
            count = await purged
        _log.info("queue.purged", vhost=vhost.name, queue=queue.name, messages=count)
        await engine.committer.drain()
        return {"messages": count}

    return {"purge_queue": purge}
