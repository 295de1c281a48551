"""Moves messages from one queue to others, and dead letters back to the queues where they died."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.administration.deciding import count_all
from broker.administration.messages.mover import carry_out
from broker.core.moving.condition import every
from broker.core.moving.course import back_home, to_exchange, to_queue
from broker.core.moving.moving import Move, MoveTally
from broker.core.queue.queue import Queue
from broker.event_log import get_logger
from broker.net.control_request import LARGEST, ControlRefused, Request, Verb
from broker.net.control_verbs.destination import destination_of, queue_named, told
from broker.net.control_verbs.refusing import vhost_of

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.core.vhost import Vhost
    from broker.routing.exchange import Exchange

__all__ = ["moving_verbs"]

_log = get_logger()

INTO: Final = ("queue", "exchange")


def moving_verbs(administration: Administration, facts: Callable[[], Mapping[str, Any]]) -> dict[str, Verb]:
    """Return the verbs. `facts` has the active alarms: a full disk ends a move, which writes the messages again."""

    async def run(
        request: Request, vhost: Vhost, move: Move, to: Mapping[str, Any], ends: Sequence[Queue | Exchange]
    ) -> dict[str, Any]:
        source = move.source
        await count_all([source])
        total = source.counts()[0]

        def deleted() -> str:
            return "".join([f"'{end.name}' was deleted" for end in ends if end.deleted][:1])

        def step(tally: MoveTally) -> str:
            request.asker.tell({"looked": tally.looked, "moved": tally.moved, "total": total})
            if administration.closed:
                return "the broker is stopping"
            if any(alarm["kind"] == "disk" for alarm in facts()["alarms"]):
                return "the disk alarm blocks publishing"
            return deleted() or ("interrupted" if request.asker.enough() else "")

        reason = await carry_out(administration.vhosts.engines[vhost.name], move, step) or deleted()
        if move.full:
            reason = f"queue '{ends[-1].name}' is full"
        tally = move.tally
        counts = {"moved": tally.moved, "unroutable": tally.unroutable, "refused": tally.refused}
        await count_all([source])
        _log.info("messages.moved", vhost=vhost.name, queue=source.name, to=to, **counts, stopped=reason or None)
        return {**counts, "unwanted": tally.unwanted, "to": to, "left": source.counts()[0], "stopped": reason or None}

    def limit_of(request: Request) -> int | None:
        return request.integer("limit", 1, 1, LARGEST) if request.has("limit") else None

    async def move(request: Request) -> dict[str, Any]:
        vhost = vhost_of(request, administration)
        source = queue_named(vhost, request.text("queue"))
        destination, key = destination_of(vhost, request.text("to"))
        if destination is source:
            raise ControlRefused(f"queue '{source.name}' cannot be moved to itself")
        check = request.check_publish
        alone = isinstance(destination, Queue)
        course = (
            to_queue(destination) if isinstance(destination, Queue) else to_exchange(vhost, destination, key, check)
        )
        wanted = every(request.texts("match"))
        moving = Move(vhost, source, course, wanted=wanted, limit=limit_of(request), alone=alone)
        return await run(request, vhost, moving, told(destination, key), (source, destination))

    async def requeue_dead_letters(request: Request) -> dict[str, Any]:
        vhost = vhost_of(request, administration)
        source = queue_named(vhost, request.text("queue"))
        into = request.text("into", INTO[0])
        if into not in INTO:
            raise ControlRefused(f"'into' should be {' or '.join(INTO)}")
        course = back_home(
            vhost,
            into_exchange=into == "exchange",
            reasons=request.texts("reasons"),
            died_in=request.texts("died_in"),
            check=request.check_publish,
        )
        moving = Move(vhost, source, course, wanted=every(request.texts("match")), limit=limit_of(request))
        return await run(request, vhost, moving, {"death": into}, (source,))

    return {"move": move, "requeue_dead_letters": requeue_dead_letters}
