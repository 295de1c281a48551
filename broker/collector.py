"""Garbage collection of the broker's process: long-lived objects are frozen, so that collections stay short."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.server import BrokerServer

__all__ = ["DELETED_MAX", "GROWTH", "VISITED_MAX", "Collector"]

INTERVAL_S: Final = 1.0
GROWTH: Final = 10_000  # more bindings and queues than this since the last freeze cause the next one
CONNECTION: Final = 10  # how many a connection with its channel counts for: some forty objects
YOUNG: Final = 5000  # new objects per collection of generation 0: most messages of a turn are gone by then
ROUNDS: Final = 4  # thresholds of generations 1 and 2
NEVER: Final = 1 << 30
IDLE_TURNS: Final = 20  # turns of the loop in a second: heartbeats, and little else
IDLE_S: Final = 30  # this many idle seconds in a row without a client cause a full collection
OLD: Final = 5  # collections of generation 1 after which what became old is looked at
VISITED_MAX: Final = 50_000  # old objects that a collection may visit while clients are connected: 20 ms at most
DELETED_MAX: Final = 10_000  # deleted queues of a cluster that cause a full collection: each leaves some kilobytes


class Collector:
    """Moves long-lived objects to the permanent generation (`gc.freeze`) once enough have accumulated.

    A full collection visits every object: 70 ms in a fresh broker, far more with 100,000 bindings. Frozen objects are
    not visited, and are still freed when their last reference goes: connections, channels, consumers, exchanges and
    queues leave no reference cycles. The rest is little: deleted vhosts, and what failed. It is found when it is young,
    or by a full collection, with everything unfrozen, which waits until no client has been connected for a while.
    Queues of a cluster are cycles, so there many deleted ones cause one too.
    When objects have become old, those that are not frozen are visited, and then frozen. If they are too many for that,
    they are frozen at once: a topology has grown.
    Source: the gc module's freeze(), from Instagram's web servers.
    """

    def __init__(self, broker: BrokerServer, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._loop = loop
        self._alarm: asyncio.TimerHandle | None = None
        self._size = 0
        self._deleted = 0
        self._thresholds = gc.get_threshold()
        self._turns = 0
        self._idle_s = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Disable collections during a recovery, whose objects stay and are frozen without being visited.

        Otherwise the first client would wait for a collection that finds about a megabyte.
        """
        gc.disable()
        try:
            yield
            gc.freeze()  # all of it is in generation 0, and the next allocation would visit it
        finally:
            gc.enable()

    def start(self) -> None:
        """Freeze the objects of the start, and check once a second from then on."""
        gc.set_threshold(YOUNG, ROUNDS, NEVER)
        gc.freeze()
        self._size = self._now
        self._wait()

    def close(self) -> None:
        """Stop checking, and restore the settings of the collector."""
        gc.set_threshold(*self._thresholds)
        if self._alarm is not None:
            self._alarm.cancel()
        gc.unfreeze()

    def look(self) -> None:
        """Freeze the objects of the broker if there are many new ones, or collect what is unreachable."""
        turns = self._broker.turn.count
        is_idle = turns - self._turns < IDLE_TURNS and not self._broker.listener.transports
        self._idle_s = self._idle_s + 1 if is_idle else 0
        self._turns = turns
        deleted = self._broker.statistics.churn().queues_deleted
        self._size = min(self._size, self._now)
        grown = self._now - self._size
        if self._idle_s == IDLE_S or (self._broker.node is not None and deleted - self._deleted >= DELETED_MAX):
            self._deleted = deleted
            gc.unfreeze()
            gc.collect()
            self._set_aside()
        elif gc.get_count()[2] >= OLD:
            if len(gc.get_objects(generation=2)) <= VISITED_MAX:
                gc.collect()  # what is new may be no more than the rows of some lists
            self._set_aside()
        elif grown >= GROWTH:
            self._set_aside()

    def _wait(self) -> None:
        self._alarm = self._loop.call_later(INTERVAL_S, self._ring)

    def _ring(self) -> None:
        self.look()
        self._wait()

    def _set_aside(self) -> None:
        gc.collect(1)  # young unreachable objects are not worth keeping
        gc.freeze()
        self._size = self._now

    @property
    def _now(self) -> int:
        grown = sum(vhost.bindings.live.count + len(vhost.queues) for vhost in self._broker.vhosts.values())
        return grown + CONNECTION * len(self._broker.listener.transports)
