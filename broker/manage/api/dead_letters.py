"""The destinations of dead letters: the queues that keep them, and the queues whose dead letters are lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final

from broker.administration.deciding import count_all
from broker.administration.slices import in_slices
from broker.amqp.content_header import HeaderFields
from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost
from broker.manage.answers import Response, rows_answer
from broker.manage.call import ApiRoute, Call, Needs, visible_vhosts
from broker.operations.rows import queue_lengths
from broker.routing.exchange import Exchange

QUEUES_AT_ONCE: Final = 500  # examined between two turns of the loop
SOURCES_SHOWN: Final = 20
REACHED_MAX: Final = 200  # queues that are followed from one exchange and key

Place = tuple[str, str | None]
"""Exchange and routing key of dead letters; None is the key of each message."""
Sources = dict[Place, list[str]]


async def dead_letters(call: Call) -> Response:
    """List the queues that may get dead letters, and the sources whose dead letters reach no queue."""
    found = []
    for vhost in visible_vhosts(call):
        sources = await _sources(vhost)
        reached = await _reached(vhost, sources)
        if call.broker.cluster is not None:
            await count_all([vhost.queues[name] for name in filter(None, reached) if name in vhost.queues])
        found.append((vhost, sources, reached))
    return rows_answer(row for one in found for row in _rows(*one))


async def _sources(vhost: Vhost) -> Sources:
    """Return the queues by the exchange and key of their dead letters. Cost: the queues of the vhost, in pieces."""
    sources: Sources = {}
    async for queue in in_slices(list(vhost.queues.values()), QUEUES_AT_ONCE):
        rules = queue.rules
        if rules.dead_letter_exchange is not None:
            sources.setdefault((rules.dead_letter_exchange, rules.dead_letter_key), []).append(queue.name)
    return sources


async def _reached(vhost: Vhost, sources: Iterable[Place]) -> dict[str | None, list[Place]]:
    """Group exchanges and keys by the queue that dead letters may reach from them, None if they reach none."""
    reached: dict[str | None, list[Place]] = {None: []}
    async for place in in_slices(sources, 1):
        ends = list(_ends(vhost, *place))
        for end in ends:
            reached.setdefault(end.name, []).append(place)
        if not ends:
            reached[None].append(place)
    return reached


def _rows(vhost: Vhost, sources: Sources, reached: dict[str | None, list[Place]]) -> Iterator[dict[str, Any]]:
    """Yield a row for each queue that dead letters may reach, then one for each exchange and key that reaches no queue.

    Shapes: `sources` are some of the queues whose messages come here, `source_count` tells how many there are.
    """
    lost = reached.pop(None)
    for name in sorted(filter(None, reached)):
        queue = vhost.queues.get(name)
        if queue is not None:  # it was not deleted meanwhile
            yield _kept(vhost.name, queue, [sources[place] for place in reached[name]])
    for place in lost:
        yield _lost(vhost, place, sources[place])


def _ends(vhost: Vhost, exchange_name: str, key: str | None) -> Iterator[Queue]:
    """Yield the queues that dead letters of an exchange and a key may reach, up to a limit."""
    exchange = vhost.exchanges.get(exchange_name)
    if exchange is None:
        return
    if key is not None and not vhost.router.dynamic(exchange):
        found: Iterable[Any] = vhost.router.queues(exchange, [key], HeaderFields(b""))
    else:
        found = _bound(vhost, exchange)
    for end in islice(found, REACHED_MAX):
        if isinstance(end, Queue) and not (end.is_tap or end.is_overlay):
            yield end


def _bound(vhost: Vhost, exchange: Exchange) -> Iterator[Any]:
    """Yield everything that is bound to an exchange, or to exchanges that it forwards to, whatever the keys."""
    for current in vhost.router.reachable(exchange):
        yield from (destination for destination in current.bundles if destination not in current.onward)


def _kept(vhost: str, queue: Queue, sources: list[list[str]]) -> dict[str, Any]:
    """Return the row of a queue. Each source has one exchange and key, so it is listed once."""
    return {
        "vhost": vhost,
        "name": queue.name,
        **queue_lengths(queue),
        "sources": list(islice(chain.from_iterable(sources), SOURCES_SHOWN)),
        "source_count": sum(map(len, sources)),
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


ROUTES: Final = (
    ApiRoute("GET", "/api/slotmq/dead-letters", Needs.MANAGEMENT, dead_letters, ()),
    ApiRoute("GET", "/api/slotmq/dead-letters/{vhost}", Needs.MANAGEMENT, dead_letters, ()),
)
