"""The numbers of one queue as the live stream tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.manage.api.live_overview import rates_between
from broker.manage.counts import QUEUE_COUNTERS, QUEUE_NUMBERS, queue_numbers
from broker.manage.refusal import not_authorised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.manage.call import Call

__all__ = ["LiveQueue"]

RATED: Final = QUEUE_NUMBERS[:QUEUE_COUNTERS]


class LiveQueue:
    """Reads a queue for one stream. The queue may be deleted and declared again meanwhile."""

    __slots__ = ("_before", "_before_ms", "_call", "_name", "_number", "_vhost")

    def __init__(self, call: Call, vhost: str, name: str) -> None:
        """Follow a queue. Raises: HttpRefused (401) for a vhost that the caller does not see."""
        if not call.sees_vhost(vhost):
            raise not_authorised("User not authorised to access virtual host")
        self._call = call
        self._vhost = vhost
        self._name = name
        self._number = -1
        self._before: Sequence[int] | None = None
        self._before_ms = 0

    async def read(self) -> dict[str, Any]:
        """Return the numbers of the queue; {"gone": true} if there is none. Cost: O(levels)."""
        vhost = self._call.broker.administration.vhosts.get(self._vhost)
        queue = None if vhost is None else vhost.queues.get(self._name)
        if queue is None or not self._call.sees_vhost(self._vhost):
            self._before = None
            return {"gone": True}
        numbers, at_ms = queue_numbers(queue), self._call.broker.samples.now_ms
        before = self._before if queue.number == self._number else None
        value: dict[str, Any] = dict(zip(QUEUE_NUMBERS[QUEUE_COUNTERS:], numbers[QUEUE_COUNTERS:], strict=True))
        value |= rates_between(RATED, before, numbers, at_ms - self._before_ms)
        self._before, self._before_ms, self._number = numbers, at_ms, queue.number
        state = "paused" if queue.paused else "running"
        policies = {"policy": queue.policy, "operator_policy": queue.operator_policy}
        return {**value, "consumers": len(queue.consumers), "state": state, **policies}
