"""The engine of a vhost in a cluster: that of a broker which stands alone, with other parts.

Messages and topology are in PostgreSQL. The vhost's own store holds what leaves the memory while it is leased, and
nothing of it outlives the process: there are no checkpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.cluster.mailbox import SharedReplies
from broker.cluster.shared_delay import SharedDelay
from broker.cluster.shared_producers import SharedProducers, producer_key
from broker.cluster.shared_queue import SharedHoldingQueue, SharedQueue
from broker.core.queue.holding_queue import is_holding_name
from broker.delivery.engine import Engine

if TYPE_CHECKING:
    from broker.cluster.node_parts import NodeParts
    from broker.core.publishing.local_store import LocalStore
    from broker.core.queue.ports import QueuePorts, StreamOwner
    from broker.core.queue.queue import Queue
    from broker.core.queue.stream import Stream
    from broker.core.topology.journal import Journal
    from broker.delivery.committer import EngineCommitter
    from broker.delivery.turn import Turn
    from broker.settings import Settings
    from broker.store.recovery import Recovered
    from broker.store.store import VhostStore

__all__ = ["SharedEngine"]


class SharedEngine(Engine):
    """Runs one vhost of a node."""

    delay_kind = SharedDelay

    def __init__(
        self,
        name: str,
        store: VhostStore,
        settings: Settings,
        turn: Turn,
        loop: asyncio.AbstractEventLoop,
        *,
        generate: Callable[[], str],
        fail: Callable[[BaseException], None],
        parts: NodeParts,
    ) -> None:
        self._parts = parts
        self._name = name
        super().__init__(name, store, settings, turn, loop, generate=generate, fail=fail)

    def _make_committer(self) -> EngineCommitter:
        return self._parts.data.committer()

    def _make_journal(self) -> Journal:
        return self._parts.topology.journal(self._name)

    def _make_store(self) -> LocalStore:
        return self._parts.data.store(self.store.recorder, self._producer)

    def _kind_of(self, name: str, recovered: bool) -> Callable[..., Queue]:
        assert not recovered, "the declarations are in PostgreSQL"
        kind = SharedHoldingQueue if is_holding_name(name) else SharedQueue
        return partial(kind, parts=self._parts, vhost_name=self._name)

    def _make_stream(
        self, queue: StreamOwner, level: int, number: int, ports: QueuePorts[Stream, Queue], persists_all: bool
    ) -> Stream:
        return self._parts.data.stream_of(queue, level, number, ports, persists_all)

    def _producer(self, mark: int) -> str:
        """Return the name of a producer by its mark, with that of its vhost."""
        return producer_key(self._name, self.vhost.producers.name_of(mark))

    def _make_replies(self, vhost: str) -> SharedReplies:
        return SharedReplies(self._parts.mailbox, vhost)

    def _make_producers(self, *arguments: Any) -> SharedProducers:
        return SharedProducers(*arguments, claims=self._parts.claims)

    def restore(self, recovered: Recovered, sealed: Mapping[int, int]) -> None:
        """Make the exchanges, queues and bindings that the cluster has; the store of this node is empty."""
        assert not recovered.messages
        self.recovered_clean = True
        self._parts.topology.opened(self.vhost)

    async def stop(self) -> None:
        """Close the store; the node has returned what it held."""
        self._stops = True
        self.close(clean=True)

    async def frozen(self, work: Callable[[], None]) -> None:
        """Raise ValueError: the files of a node are no backup of anything."""
        raise ValueError("the messages of a cluster are in PostgreSQL: back up the database")

    async def discard(self) -> None:
        """End the engine of a vhost that is deleted."""
        self._parts.topology.closed(self._name)
        await super().discard()
