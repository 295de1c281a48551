"""The parts of the engine of a vhost in a cluster.

Messages and topology are in PostgreSQL. The vhost's own store holds what leaves the memory while it is leased, and
nothing of it outlives the process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.cluster.mailbox import SharedReplies
from broker.cluster.shared_delay import SharedDelay
from broker.cluster.shared_messages import SharedMessages
from broker.cluster.shared_producers import SharedProducers, producer_key
from broker.cluster.shared_queue import SharedHoldingQueue, SharedQueue
from broker.core.queue.holding_queue import is_holding_name

if TYPE_CHECKING:
    from broker.cluster.caller import SharedCommitter
    from broker.cluster.node_parts import NodeParts
    from broker.cluster.shared_journal import SharedJournal
    from broker.cluster.shared_store import SharedStore
    from broker.cluster.shared_stream import SharedStream
    from broker.core.queue.ports import QueuePorts
    from broker.core.queue.queue import Queue
    from broker.core.queue.stream import Stream
    from broker.core.queue.stream_owner import StreamOwner
    from broker.core.vhost import Vhost
    from broker.delivery.committer import EngineCommitter
    from broker.delivery.reader import SlotReader
    from broker.store.recorder import Recorder

__all__ = ["SharedParts"]


class SharedParts:
    """The `EngineParts` of one vhost of a node."""

    lasting = False
    delay = SharedDelay

    def __init__(self, vhost: str, node: NodeParts) -> None:
        self._vhost = vhost
        self._node = node

    def producers(self, *arguments: Any) -> SharedProducers:
        """Return what knows the numbered producers that this node has claimed."""
        return SharedProducers(*arguments, claims=self._node.claims)

    def replies(self, vhost: str) -> SharedReplies:
        """Return what knows the consumers of direct replies."""
        return SharedReplies(self._node.mailbox, vhost)

    def kind_of(self, name: str, recovered: bool) -> Callable[..., Queue]:
        """Return the class of a new queue."""
        assert not recovered, "the declarations are in PostgreSQL"
        kind = SharedHoldingQueue if is_holding_name(name) else SharedQueue
        return partial(kind, parts=self._node, vhost_name=self._vhost)

    def stream_of(
        self, queue: StreamOwner, level: int, number: int, ports: QueuePorts[Stream, Queue], persists_all: bool
    ) -> SharedStream:
        """Return a stream of a new queue."""
        return self._node.data.stream_of(queue, level, number, ports, persists_all)

    def committer(self, *_: object) -> SharedCommitter:
        """Return what confirms publishes and transactions."""
        return self._node.data.committer()

    def journal(self, _record: Callable[[dict[str, Any]], None]) -> SharedJournal:
        """Return what proposes changes of the topology."""
        return self._node.topology.journal(self._vhost)

    def store(self, recorder: Recorder, producer_of: Callable[[int], str]) -> SharedStore:
        """Return what adds messages to the batch of the node."""
        return self._node.data.store(recorder, lambda mark: producer_key(self._vhost, producer_of(mark)))

    def messages(self, vhost: Vhost, queue: Queue, reader: SlotReader, committer: EngineCommitter) -> SharedMessages:
        """Return the messages of a queue on all nodes, for an operator."""
        return SharedMessages(vhost, queue, reader, committer, self._node)

    def opened(self, vhost: Vhost) -> None:
        """Make the exchanges, queues and bindings that the cluster has."""
        self._node.topology.opened(vhost)

    def closed(self) -> None:
        """Leave the vhost alone, because it is being deleted."""
        self._node.topology.closed(self._vhost)
