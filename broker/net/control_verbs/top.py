"""`top`: the busiest, longest or oldest queues, with rates, and the totals of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.administration.deciding import count_all
from broker.administration.messages.head_age import HeadTimes
from broker.net.control_request import ROWS_AT_ONCE, ControlRefused, Request, Verb
from broker.net.control_verbs.queue_rates import QueueRates, Rates
from broker.net.control_verbs.refusing import vhost_of
from broker.operations.rows import queue_lengths, queue_state

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.core.queue.queue import Queue
    from broker.core.vhost import Vhost

__all__ = ["SORTED_BY", "top_verbs"]

ROWS_MAX: Final = 500
VHOSTS_MAX: Final = 100
SORTED_BY: Final = ("publish", "deliver", "ack", "ready", "unacked", "consumers", "age", "name")
NO_RATES: Final = Rates(0.0, 0.0, 0.0)
TOTALS: Final = ("publish", "deliver", "ack", "ready", "unacked", "consumers")


def top_verbs(administration: Administration, facts: Callable[[], Mapping[str, Any]]) -> dict[str, Verb]:
    """Return the verb. `facts` has the alarms and the number of connections."""
    seen, heads = QueueRates(), HeadTimes()

    async def top(request: Request) -> dict[str, Any]:
        by = request.text("by", SORTED_BY[0])
        if by not in SORTED_BY:
            raise ControlRefused(f"'by' should be one of {', '.join(SORTED_BY)}")
        sought = request.text("filter", "").lower()
        vhosts = [vhost_of(request, administration)] if request.has("vhost") else list(administration.vhosts.values())
        every = [(vhost, queue) for vhost in administration.vhosts.values() for queue in vhost.queues.values()]
        rates = await seen.measure({(vhost.name, queue.number): queue for vhost, queue in every})
        chosen = [(vhost, queue) for vhost, queue in every if vhost in vhosts and sought in queue.name.lower()]
        await count_all([queue for _vhost, queue in chosen])
        rows: list[TopRow] = []
        for vhost, queue in chosen:
            rows.append(TopRow(vhost, queue, rates.get((vhost.name, queue.number), NO_RATES)))
            if by == "age":
                await rows[-1].find_age(heads)
            if len(rows) % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)
        totals = await asyncio.to_thread(_arrange, rows, by, reverse=request.flag("reverse"))  # others run meanwhile
        offset = request.integer("offset", 0)
        page = rows[offset : offset + request.integer("limit", 50, 1, ROWS_MAX)]
        for row in page:
            await row.find_age(heads)
        heads.keep({row.queue for row in (rows if by == "age" else page)})
        told = facts()
        return {
            "queues": [row.fields for row in page],
            "matching": len(rows),
            "totals": totals,
            "connections": told["connections"],
            "alarms": [alarm["kind"] for alarm in told["alarms"]],
            "vhosts": sorted(administration.vhosts)[:VHOSTS_MAX],
        }

    return {"top": top}


def _arrange(rows: list[TopRow], by: str, *, reverse: bool) -> dict[str, float]:
    """Sort the rows, and return their totals."""
    rows.sort(key=lambda row: (row.fields["vhost"], row.fields["name"]))
    if by != "name":
        rows.sort(key=lambda row: row.fields[by] or 0, reverse=not reverse)
    elif reverse:
        rows.reverse()
    return {name: round(sum(row.fields[name] for row in rows), 1) for name in TOTALS}


class TopRow:
    """A queue at the moment of the look. Units: `age` is in seconds, None without a ready message in this broker."""

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
        """Find how long the oldest message that is ready has waited."""
        if self.fields["age"] is None:
            oldest_ms = await heads.oldest_ms(self.queue)
            if oldest_ms is not None:
                self.fields["age"] = round(max(0, self._clock.now_ms - oldest_ms) / 1000, 1)
