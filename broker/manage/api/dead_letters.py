"""Where dead letters end up: the queues that keep them, and the queues whose dead letters are lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from broker.core.message.fields import HeaderFields
from broker.core.queue.queue import Queue
from broker.manage.answers import rows_answer
from broker.manage.api_route import ApiRoute
from broker.manage.gradual import pause
from broker.manage.needs import Needs

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.core.vhost import Vhost
    from broker.manage.call import Call
    from broker.routing.exchange import Exchange

__all__ = ["dead_letter_routes"]

QUEUES_AT_ONCE: Final = 500  # that are looked at between two turns of the loop
SOURCES_SHOWN: Final = 20
REACHED_MAX: Final = 1000  # queues that one dead letter exchange is followed to

Place = tuple[str, str | None]
"""Exchange and routing key of dead letters; None is the key of each message."""


def dead_letter_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("GET", "/api/slotmq/dead-letters", Needs.MANAGEMENT, dead_letters, ()),
        ApiRoute("GET", "/api/slotmq/dead-letters/{vhost}", Needs.MANAGEMENT, dead_letters, ()),
    ]


async def dead_letters(call: Call) -> Response:
    """List the queues that may get dead letters, and the sources whose dead letters reach no queue."""
    vhosts = call.broker.administration.vhosts
    every = [vhosts[name] for name in sorted(vhosts) if call.sees_vhost(name)]
    rows = []
    for vhost in [call.vhost()] if "vhost" in call.words else every:
        rows += await _rows(vhost)
    return rows_answer(iter(rows))


async def _rows(vhost: Vhost) -> list[dict[str, Any]]:
    """Return a row for each queue that dead letters may reach, and one without a queue for each place of no return.

    Shapes: `sources` are some of the queues whose messages come here, `source_count` tells how many there are.
    Cost: the queues of the vhost, in pieces, and the bindings of their dead letter exchanges.
    """
    sources: dict[Place, list[str]] = {}
    for number, queue in enumerate(list(vhost.queues.values()), 1):
        rules = queue.rules
        if rules.dead_letter_exchange is not None:
            sources.setdefault((rules.dead_letter_exchange, rules.dead_letter_key), []).append(queue.name)
        if number % QUEUES_AT_ONCE == 0:
            await pause()
    reached: dict[str, list[str]] = {}
    lost = []
    for place, names in sources.items():
        ends = list(_ends(vhost, *place))
        for end in ends:
            reached.setdefault(end.name, []).extend(names)
        if not ends:
            lost.append(_lost(vhost, place, names))
        await pause()
    kept = [_kept(vhost, name, names) for name, names in sorted(reached.items()) if name in vhost.queues]
    return [*kept, *lost]


def _ends(vhost: Vhost, exchange_name: str, key: str | None) -> Iterator[Queue]:
    """Yield the queues that dead letters of an exchange and a key may reach, up to a limit."""
    exchange = vhost.exchanges.get(exchange_name)
    if exchange is None:
        return
    if key is not None and not vhost.router.dynamic(exchange):
        found = vhost.router.queues(exchange, [key], HeaderFields(b""))
    else:
        found = tuple(_bound(vhost, exchange))
    for end in found[:REACHED_MAX]:
        if isinstance(end, Queue) and not (end.is_tap or end.is_stream):
            yield end


def _bound(vhost: Vhost, exchange: Exchange) -> Iterator[Any]:
    """Yield everything that is bound to an exchange, or to exchanges behind it, whatever the keys."""
    reached = {exchange: None}
    pending = [exchange]
    for current in pending:  # grows during the loop
        yield from (destination for destination in current.bundles if destination not in current.onward)
        alternate = vhost.exchanges.get(current.alternate) if current.alternate else None
        for onward in current.onward if alternate is None else (*current.onward, alternate):
            if onward not in reached:
                reached[onward] = None
                pending.append(onward)


def _kept(vhost: Vhost, name: str, sources: list[str]) -> dict[str, Any]:
    queue = vhost.queues[name]
    names = list(dict.fromkeys(sources))
    return {
        "vhost": vhost.name,
        "name": name,
        "messages": queue.ready + queue.unacked,
        "messages_ready": queue.ready,
        "messages_unacknowledged": queue.unacked,
        "consumers": len(queue.consumers),
        "sources": names[:SOURCES_SHOWN],
        "source_count": len(names),
    }


def _lost(vhost: Vhost, place: Place, sources: list[str]) -> dict[str, Any]:
    exchange, key = place
    if exchange == "" and key is None:
        reason = "each goes to the queue that its routing key names"
    elif exchange not in vhost.exchanges:
        reason = "the exchange does not exist: dead letters are dropped"
    else:
        reason = "nothing is bound there: dead letters are dropped"
    return {
        "vhost": vhost.name,
        "name": None,
        "exchange": exchange,
        "routing_key": key,
        "reason": reason,
        "lost": not (exchange == "" and key is None),
        "sources": sources[:SOURCES_SHOWN],
        "source_count": len(sources),
    }
