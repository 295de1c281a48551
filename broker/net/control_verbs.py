"""What the control socket can be asked: `slots` of a queue, and the broker's `status`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

from broker.core.vhost import Vhost
from broker.net.control import ControlRefused, Verb
from broker.slots.slot import Slot

__all__ = ["control_verbs"]

ROWS_MAX: Final = 10_000  # slots in one answer; a longer queue says how many there are in all


def control_verbs(vhosts: Mapping[str, Vhost], facts: Callable[[], Mapping[str, Any]]) -> dict[str, Verb]:
    """Returns the verbs. `facts` gives what only the server knows: version, address, connections, alarms."""

    def slots(request: Mapping[str, Any]) -> dict[str, Any]:
        vhost_name, queue_name = str(request.get("vhost", "/")), str(request.get("queue", ""))
        vhost = vhosts.get(vhost_name)
        if vhost is None:
            raise ControlRefused(f"no vhost '{vhost_name}'")
        queue = vhost.queues.get(queue_name)
        if queue is None:
            raise ControlRefused(f"no queue '{queue_name}' in vhost '{vhost_name}'")
        manager = queue.manager
        return {
            "queue": queue_name,
            "vhost": vhost_name,
            "ready": manager.ready,
            "unacked": manager.unacked,
            "slot_count": len(manager.slots),
            "slots": [slot_row(slot) for slot in islice(manager.slots.values(), ROWS_MAX)],
        }

    def status(_request: Mapping[str, Any]) -> dict[str, Any]:
        queues = [queue for vhost in vhosts.values() for queue in vhost.queues.values()]
        return {
            **facts(),
            "vhosts": len(vhosts),
            "queues": len(queues),
            "ready": sum(queue.manager.ready for queue in queues),
            "unacked": sum(queue.manager.unacked for queue in queues),
            "slots": sum(len(queue.manager.slots) for queue in queues),
        }

    return {"slots": slots, "status": status}


def slot_row(slot: Slot) -> dict[str, Any]:
    """Returns a slot as JSON can say it. Shapes: ids from `first` up to, not including, `end`."""
    return {
        "first": slot.first,
        "end": slot.end,
        "state": slot.fill.value,
        "owner": None if slot.lease is None else f"{slot.lease.owner.node}/{slot.lease.owner.worker}",
        "settled": slot.acks.count,
        "bytes": slot.bytes,
        "resident": slot.resident,
    }
