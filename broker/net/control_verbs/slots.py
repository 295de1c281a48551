"""`slots` of a queue, the broker's `status`, and `health`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from broker.net.control_request import ControlRefused, Request, Verb
from broker.net.control_verbs.refusing import vhost_of
from broker.operations.rows import slot_count
from broker.taps.tap_listing import cursor_rows

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.core.queue.stream import Stream
    from broker.slots.slot import Slot
    from broker.taps.taps import Taps

__all__ = ["slot_verbs"]

ROWS_MAX: Final = 10_000  # slots in one answer, which also has their total number


def slot_verbs(administration: Administration, taps: Taps, facts: Callable[[], Mapping[str, Any]]) -> dict[str, Verb]:
    """Return the verbs. `facts` returns what only the server knows."""

    def slots(request: Request) -> dict[str, Any]:
        name, vhost = request.text("queue"), vhost_of(request, administration)
        queue = vhost.queues.get(name)
        if queue is None:
            raise ControlRefused(f"no queue '{name}' in vhost '{vhost.name}'")
        rows = (slot_row(stream, slot) for stream in reversed(queue.streams) for slot in stream.manager.slots.values())
        return {
            "queue": name,
            "vhost": vhost.name,
            "ready": queue.ready,
            "unacked": queue.unacked,
            "levels": len(queue.streams),
            "slot_count": slot_count(queue),
            "slots": list(islice(rows, ROWS_MAX)),
        }

    def status(_request: Request) -> dict[str, Any]:
        vhosts = administration.vhosts
        queues = [queue for vhost in vhosts.values() for queue in vhost.queues.values()]
        return {
            **facts(),
            "vhosts": len(vhosts),
            "vhosts_down": [
                {"vhost": name, "reason": offline.reason} for name, offline in sorted(vhosts.offline.items())
            ],
            "queues_recovered": [
                {"vhost": name, "queue": queue.name, "messages": queue.ready + queue.unacked}
                for name, vhost in vhosts.items()
                for queue in vhost.queues.values()
                if queue.recovered
            ],
            "queues": len(queues),
            "ready": sum(queue.ready for queue in queues),
            "unacked": sum(queue.unacked for queue in queues),
            "slots": sum(map(slot_count, queues)),
            "cursors": cursor_rows(taps.listing()),
        }

    def health(_request: Request) -> None:
        """Answer, which shows that the loop runs."""

    return {"slots": slots, "status": status, "health": health}


def slot_row(stream: Stream, slot: Slot) -> dict[str, Any]:
    """Return a slot as JSON. Shapes: ids from `first` up to, not including, `end`."""
    return {
        "level": stream.level,
        "first": slot.first,
        "end": slot.end,
        "state": slot.fill.value,
        "owner": None if slot.owner is None else f"{slot.owner.node}/{slot.owner.worker}",
        "settled": slot.acks.count,
        "bytes": slot.bytes,
        "resident": slot.resident,
    }
