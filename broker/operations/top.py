"""`top`: the first queues by rate, length, age or name, and the totals of all queues that match."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from broker.administration.deciding import count_all
from broker.administration.slices import in_slices
from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost
from broker.operations.operated_broker import OperatedBroker
from broker.operations.operation import MONITORING, Operation
from broker.operations.queue_readings import HeadTimes, Rates
from broker.operations.request import ROWS_AT_ONCE, Asker, OperationRefused, Range, parameters
from broker.operations.rows import queue_lengths, queue_state

ROWS_MAX: Final = 500
VHOSTS_MAX: Final = 100
SORTED_BY: Final = ("publish", "deliver", "ack", "ready", "unacked", "consumers", "age", "name")
NO_RATES: Final = Rates(0.0, 0.0, 0.0)
TOTALS: Final = ("publish", "deliver", "ack", "ready", "unacked", "consumers")


@parameters
class Top:
    """The queues to show and their order. Shapes: `filter` is a part of their names, ignoring case."""

    by: str = SORTED_BY[0]
    filter: str = ""
    vhost: str | None = None
    reverse: bool = False
    offset: Annotated[int, Range()] = 0
    limit: Annotated[int, Range(1, ROWS_MAX)] = 50


async def top(broker: OperatedBroker, asked: Top, _asker: Asker) -> dict[str, Any]:
    """Return the first queues by rate, length, age or name, and the totals of all queues that match."""
    by, heads, administration = asked.by, broker.heads, broker.administration
    if by not in SORTED_BY:
        raise OperationRefused(f"'by' should be one of {', '.join(SORTED_BY)}")
    sought, vhosts = asked.filter.lower(), broker.vhosts(asked.vhost)
    every = [(vhost, queue) for vhost in administration.vhosts.values() for queue in vhost.queues.values()]
    rates = await broker.top_rates.measure({(vhost.name, queue.number): queue for vhost, queue in every})
    chosen = [(vhost, queue) for vhost, queue in every if vhost in vhosts and sought in queue.name.lower()]
    await count_all([queue for _vhost, queue in chosen])
    rows: list[TopRow] = []
    async for vhost, queue in in_slices(chosen, ROWS_AT_ONCE):
        rows.append(TopRow(vhost, queue, rates.get((vhost.name, queue.number), NO_RATES)))
        if by == "age":
            await rows[-1].find_age(heads)
    totals = await asyncio.to_thread(_arrange, rows, by, reverse=asked.reverse)  # a thread does not block the loop
    page = rows[asked.offset : asked.offset + asked.limit]
    for row in page:
        await row.find_age(heads)
    heads.retain_only({row.queue for row in (rows if by == "age" else page)})
    facts = broker.facts()
    return {
        "queues": [row.fields for row in page],
        "matching": len(rows),
        "totals": totals,
        "connections": facts["connections"],
        "alarms": [alarm["kind"] for alarm in facts["alarms"]],
        "vhosts": sorted(administration.vhosts)[:VHOSTS_MAX],
    }


def _arrange(rows: list[TopRow], by: str, *, reverse: bool) -> dict[str, float]:
    """Sort the rows, and return their totals."""
    rows.sort(key=lambda row: (row.fields["vhost"], row.fields["name"]))
    if by != "name":
        rows.sort(key=lambda row: row.fields[by] or 0, reverse=not reverse)
    elif reverse:
        rows.reverse()
    return {name: round(sum(row.fields[name] for row in rows), 1) for name in TOTALS}


class TopRow:
    """The row of a queue. Units: `age` is in seconds, or None if it is unknown."""

    def __init__(self, vhost: Vhost, queue: Queue, rates: Rates) -> None:
        lengths = queue_lengths(queue)
        self.queue = queue
        self._clock = vhost.ports.clock
        self.fields: dict[str, Any] = {
            "vhost": vhost.name,
            "name": queue.name,
            "state": queue_state(queue),
            "ready": lengths["messages_ready"],
            "unacked": lengths["messages_unacknowledged"],
            "consumers": lengths["consumers"],
            **rates._asdict(),
            "age": None,
        }

    async def find_age(self, heads: HeadTimes) -> None:
        """Set the age of the oldest ready message."""
        if self.fields["age"] is None:
            oldest_ms = await heads.oldest_ms(self.queue)
            if oldest_ms is not None:
                self.fields["age"] = round(max(0, self._clock.now_ms - oldest_ms) / 1000, 1)


OPERATIONS: Final[dict[str, Operation[Any]]] = {"top": Operation(top, Top, tag=MONITORING)}
