"""Pauses queues and resumes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.administration.queue_pauses import QueuePauses
from broker.net.control_request import ControlRefused, Request, Verb
from broker.net.control_verbs.refusing import vhost_of

if TYPE_CHECKING:
    from broker.administration.administration import Administration

__all__ = ["pausing_verbs"]


def pausing_verbs(administration: Administration) -> dict[str, Verb]:
    """Return the verbs. A pause of a queue that was deleted can be ended, not begun."""
    pauses = QueuePauses(administration)

    async def pause(request: Request) -> None:
        vhost, name = vhost_of(request, administration), request.text("queue")
        queue = vhost.queues.get(name)
        if queue is None:
            raise ControlRefused(f"no queue '{name}' in vhost '{vhost.name}'")
        if queue.kept:
            raise ControlRefused(f"queue '{name}' in vhost '{vhost.name}' is the broker's own: it cannot be paused")
        await pauses.pause(vhost.name, name)

    async def resume(request: Request) -> None:
        vhost, name = vhost_of(request, administration), request.text("queue")
        if name not in vhost.queues and name not in vhost.queues.paused:
            raise ControlRefused(f"no queue '{name}' in vhost '{vhost.name}'")
        await pauses.resume(vhost.name, name)

    return {"pause_queue": pause, "resume_queue": resume}
