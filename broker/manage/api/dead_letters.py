"""Destinations of dead letters: the queues that they can reach, and the targets that lead to no known queue."""

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

QUEUES_AT_ONCE: Final = 500  # queues examined in one turn of the loop
SOURCES_SHOWN: Final = 20
REACHED_MAX: Final = 200  # queues listed for one target

Target = tuple[str, str | None]
"""The exchange and routing key to which dead letters are published; the key is None if messages keep their own."""
Sources = dict[Target, list[str]]


async def dead_letters(call: Call) -> Response:
    """List the queues that dead letters can reach, and the targets that lead to no known queue."""
    found = []
    for vhost in visible_vhosts(call):
        sources = await _sources(vhost)
        reached = await _reached(vhost, sources)
        if call.broker.cluster is not None:
            await count_all([vhost.queues[name] for name in filter(None, reached) if name in vhost.queues])
        found.append((vhost, sources, reached))
    return rows_answer(row for one in found for row in _rows(*one))


async def _sources(vhost: Vhost) -> Sources:
    """Return the names of queues by the target of their dead letters. Cost: O(queues of the vhost), in slices."""
    sources: Sources = {}
    async for queue in in_slices(list(vhost.queues.values()), QUEUES_AT_ONCE):
        rules = queue.rules
        if rules.dead_letter_exchange is not None:
            sources.setdefault((rules.dead_letter_exchange, rules.dead_letter_key), []).append(queue.name)
    return sources


async def _reached(vhost: Vhost, sources: Iterable[Target]) -> dict[str | None, list[Target]]:
    """Map names of queues to the targets that lead to them, and None to the targets that lead to no known queue."""
    reached: dict[str | None, list[Target]] = {None: []}
    async for target in in_slices(sources, 1):
        queues = list(_queues(vhost, *target))
        for queue in queues:
            reached.setdefault(queue.name, []).append(target)
        if not queues:
            reached[None].append(target)
    return reached


def _rows(vhost: Vhost, sources: Sources, reached: dict[str | None, list[Target]]) -> Iterator[dict[str, Any]]:
    """Yield a row for each queue that dead letters can reach, then one for each target that leads to no known queue.

    Shapes: `source_count` is the number of queues whose dead letters can arrive there; `sources` names some of them.
    """
    lost = reached.pop(None)
    for name in sorted(filter(None, reached)):
        queue = vhost.queues.get(name)
        if queue is not None:  # None: the queue was deleted in the meantime
            yield _reached_row(vhost.name, queue, [sources[target] for target in reached[name]])
    for target in lost:
        yield _lost_row(vhost, target, sources[target])


def _queues(vhost: Vhost, exchange_name: str, key: str | None) -> Iterator[Queue]:
    """Yield up to `REACHED_MAX` queues that dead letters can reach from a target."""
    exchange = vhost.exchanges.get(exchange_name)
    if exchange is None:
        return
    if key is not None and not vhost.router.dynamic(exchange):
        found: Iterable[Any] = vhost.router.queues(exchange, [key], HeaderFields(b""))
    else:
        found = _bound(vhost, exchange)
    for one in islice(found, REACHED_MAX):
        if isinstance(one, Queue) and not (one.is_tap or one.is_overlay):
            yield one


def _bound(vhost: Vhost, exchange: Exchange) -> Iterator[Any]:
    """Yield the queues bound to an exchange, or to exchanges that it forwards to, with any key."""
    for current in vhost.router.reachable(exchange):
        yield from (destination for destination in current.bundles if destination not in current.onward)


def _reached_row(vhost: str, queue: Queue, sources: list[list[str]]) -> dict[str, Any]:
    """Return the row of a queue. No source is listed twice, because each has one target."""
    return {
        "vhost": vhost,
        "name": queue.name,
        **queue_lengths(queue),
        "sources": list(islice(chain.from_iterable(sources), SOURCES_SHOWN)),
        "source_count": sum(map(len, sources)),
    }


def _lost_row(vhost: Vhost, target: Target, sources: list[str]) -> dict[str, Any]:
    exchange, key = target
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
