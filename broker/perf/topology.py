"""The topology of a run: its exchange, queues and bindings, created before the run and removed after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from broker.perf import wire
from broker.perf.peer import PeerConnection
from broker.perf.progress import RunProgress

_STEP = 5000  # bindings between two progress reports


@dataclass(frozen=True, slots=True)
class RunTopology:
    """Names, and whether the run owns them: objects named by the user are kept, predeclared ones are only checked.

    Shapes: `bindings` are pairs of queue and binding key; an `exchange` of "" is the default one.
    """

    queues: tuple[str, ...]
    exchange: str = ""
    kind: str = "topic"
    bindings: tuple[tuple[str, str], ...] = ()
    arguments: Mapping[str, str | int | bool] = field(default_factory=dict)
    predeclared: bool = False
    own_queues: bool = True
    own_exchange: bool = True

    def make(self, peer: PeerConnection, progress: RunProgress) -> int:
        """Create the topology, durable, and return how many messages the queues already hold.

        Raises: Refusal, OSError.
        """
        if self.exchange and not self.predeclared:
            peer.declare_exchange(self.exchange, durable=True, kind=self.kind)
        elif self.exchange:
            request = wire.exchange_declare(peer.channel, self.exchange, self.kind, durable=True, passive=True)
            peer.call(request, wire.EXCHANGE_DECLARE_OK)
        ready = 0
        for number, queue in enumerate(self.queues):
            ready += peer.declare_queue(queue, durable=True, passive=self.predeclared, arguments=self.arguments)
            if len(self.queues) >= _STEP and not number % _STEP:
                progress.share("queues", number, len(self.queues))
        if not self.predeclared:
            self.bind(peer, self.bindings, progress)
        return ready

    def bind(self, peer: PeerConnection, bindings: Sequence[tuple[str, str]], progress: RunProgress) -> None:
        """Add bindings: pairs of queue and binding key.

        Raises: Refusal, OSError.
        """
        for at in range(0, len(bindings), _STEP):
            if len(bindings) >= _STEP:
                progress.share("bindings", at, len(bindings))
            some = bindings[at : at + _STEP]
            requests = (wire.queue_bind(peer.channel, queue, self.exchange, key) for queue, key in some)
            peer.call_all(requests, wire.QUEUE_BIND_OK)

    def ready(self, peer: PeerConnection) -> int:
        """Return how many messages the queues hold now.

        Raises: Refusal, OSError.
        """
        return sum(peer.queue_counts(self.queues))

    def remove(self, peer: PeerConnection) -> None:
        """Remove what the run owns.

        Raises: Refusal, OSError.
        """
        if self.own_queues and not self.predeclared:
            requests = (wire.queue_delete(peer.channel, queue) for queue in self.queues)
            peer.call_all(requests, wire.QUEUE_DELETE_OK)
        if self.exchange and self.own_exchange and not self.predeclared:
            peer.call(wire.exchange_delete(peer.channel, self.exchange), wire.EXCHANGE_DELETE_OK)
