"""How many messages wait in the queues of vhosts, added up in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from broker.manage.gradual import in_pieces

if TYPE_CHECKING:
    from broker.core.vhost import Vhost

__all__ = ["Lengths", "lengths_of"]


class Lengths(NamedTuple):
    """The sums over queues. Units: messages, and consumers of this node."""

    ready: int
    unacked: int
    queues: int
    consumers: int

    @property
    def numbers(self) -> tuple[int, int, int]:
        """All messages, those that are ready, and those that are unacknowledged."""
        return self.ready + self.unacked, self.ready, self.unacked


async def lengths_of(vhosts: Iterable[Vhost]) -> Lengths:
    """Add up the queues of vhosts. Cost: O(queues), in pieces."""
    ready = unacked = queues = consumers = 0
    async for queue in in_pieces(chain.from_iterable([list(vhost.queues.values()) for vhost in vhosts])):
        ready += queue.ready
        unacked += queue.unacked
        consumers += len(queue.consumers)
        queues += 1
    return Lengths(ready, unacked, queues, consumers)
