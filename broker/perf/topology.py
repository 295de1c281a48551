"""The topology of a run: exchange, queues and bindings, created before the run and removed after it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.perf import wire
from broker.perf.faults import BadOptions
from broker.perf.flags import add, add_switch, count
from broker.perf.peer import PeerConnection
from broker.perf.progress import RunProgress

KINDS: Final = ("topic", "direct", "fanout")
_NAME_MAX_BYTES: Final = 255  # of a name
_BATCH: Final = 5000  # objects between two progress reports


@dataclass(frozen=True, slots=True)
class RunTopology:
    """The objects of a run. Those that the user named are kept, and predeclared ones are only checked.

    Shapes: `bindings` are pairs of queue and binding key; the `exchange` "" is the default exchange.
    """

    queues: tuple[str, ...]
    exchange: str = ""
    kind: str = "topic"
    bindings: tuple[tuple[str, str], ...] = ()
    arguments: wire.Table = field(default_factory=dict)
    predeclared: bool = False
    own_queues: bool = True
    own_exchange: bool = True

    def make(self, peer: PeerConnection, progress: RunProgress) -> int:
        """Create or check the durable topology, and return its number of ready messages. Raises: Refusal, OSError."""
        if self.exchange:
            peer.declare_exchange(self.exchange, durable=True, kind=self.kind, passive=self.predeclared)
        ready = 0
        for number, queue in enumerate(self.queues):
            ready += peer.declare_queue(queue, durable=True, passive=self.predeclared, arguments=self.arguments)
            if len(self.queues) >= _BATCH and not number % _BATCH:
                progress.share("queues", number, len(self.queues))
        if not self.predeclared:
            self.bind(peer, self.bindings, progress)
        return ready

    def bind(self, peer: PeerConnection, bindings: Sequence[tuple[str, str]], progress: RunProgress) -> None:
        """Add bindings: pairs of queue and binding key. Raises: Refusal, OSError."""
        for at in range(0, len(bindings), _BATCH):
            if len(bindings) >= _BATCH:
                progress.share("bindings", at, len(bindings))
            batch = bindings[at : at + _BATCH]
            requests = (wire.queue_bind(peer.channel, queue, self.exchange, key) for queue, key in batch)
            peer.call_all(requests, wire.QUEUE_BIND_OK)

    def remove(self, peer: PeerConnection) -> None:
        """Delete the objects that the run owns. Raises: Refusal, OSError."""
        if self.own_queues and not self.predeclared:
            requests = (wire.queue_delete(peer.channel, queue) for queue in self.queues)
            peer.call_all(requests, wire.QUEUE_DELETE_OK)
        if self.exchange and self.own_exchange and not self.predeclared:
            peer.call(wire.exchange_delete(peer.channel, self.exchange), wire.EXCHANGE_DELETE_OK)


def add_addressing(parser: argparse.ArgumentParser) -> None:
    """Add the options that name exchange, queues and routing keys."""
    group = parser.add_argument_group("addressing (what you name is kept, the rest is deleted after the run)")
    add(group, "-u --queue", "NAME", _name, "the queue; by default one that the run declares and deletes")
    add(group, "--queues", "N", count, "N queues, NAME-0001 and so on", 1)
    add(group, "-e --exchange", "NAME", _name, "the exchange; default the default exchange")
    group.add_argument("-t", "--type", choices=KINDS, default="topic", help="type of the exchange, default topic")
    add(group, "-k --routing-key", "KEY", _name, "the routing key; default the queue's name")
    add(group, "--keys", "N", count, "N changing routing keys, KEY.0001 and so on")
    add_switch(group, "-p --predeclared", "declare and bind nothing; a missing queue or exchange is an error")


def addressing_of(options: argparse.Namespace) -> tuple[RunTopology, list[str], int | None]:
    """Return topology, routing keys, and the number of queues per message (None if unknown). Raises: BadOptions."""
    own = own_name()
    named = options.queue or own
    queues = numbered(named, options.queues) if options.queues > 1 else [named]
    exchange = options.exchange if options.exchange is not None else own if options.keys else ""
    if options.predeclared and options.queue is None and (options.consumers or not exchange):
        raise BadOptions("--predeclared needs an existing queue: name it with -u")
    if not options.producers and options.queue is None:
        raise BadOptions("-x 0 consumes what others publish: name the queue with -u")
    if options.predeclared and options.queue is None:
        queues = []
    keys = [options.routing_key] if options.routing_key else queues
    bindings: list[tuple[str, str]] = []
    if exchange:
        keys, bindings = _through_exchange(options, queues, options.routing_key or named)
    topology = RunTopology(
        tuple(queues),
        exchange,
        options.type,
        tuple(bindings),
        dict(options.queue_args),
        predeclared=options.predeclared,
        own_queues=options.queue is None,
        own_exchange=options.exchange is None,
    )
    return topology, keys, _copies(options, exchange, keys, queues)


def own_name() -> str:
    """Return a name for an object of the run."""
    return f"slotmq-perf-{os.urandom(4).hex()}"


def numbered(name: str, total: int) -> list[str]:
    """Return numbered names of equal length. Raises: BadOptions for names too long for AMQP."""
    width = max(4, len(str(total)))
    names = [f"{name}-{number:0{width}d}" for number in range(1, total + 1)]
    if len(names[-1].encode()) > _NAME_MAX_BYTES:
        raise BadOptions("the names would be longer than AMQP's 255 bytes")
    return names


def _through_exchange(
    options: argparse.Namespace, queues: list[str], base: str
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return keys and bindings: each queue has its own keys, except with a fanout exchange. Raises: BadOptions."""
    heads = [base] if len(queues) < 2 or options.type == "fanout" else [name.replace(".", "-") for name in queues]
    width = max(4, len(str(options.keys or 1)))
    tails = [f".{number:0{width}d}" for number in range(1, options.keys + 1)] if options.keys else [""]
    keys = [head + tail for tail in tails for head in heads]
    if len(keys[-1].encode()) > _NAME_MAX_BYTES:
        raise BadOptions("the routing keys would be longer than AMQP's 255 bytes")
    if options.predeclared or not queues:
        return keys, []
    if options.type == "fanout":
        return keys, [(queue, "") for queue in queues]
    pairs = zip(queues, heads, strict=True)
    if options.type == "topic":
        return keys, [(queue, f"{head}.#" if options.keys else head) for queue, head in pairs]
    return keys, [(queue, head + tail) for queue, head in pairs for tail in tails]


def _copies(options: argparse.Namespace, exchange: str, keys: list[str], queues: list[str]) -> int | None:
    if options.queue_args or (exchange and options.predeclared) or not options.producers:
        return None  # unknown: a limit may drop messages, and existing bindings decide the route
    if not exchange:
        return 1 if set(keys) <= set(queues) else None
    return len(queues) if options.type == "fanout" else 1


def _name(text: str) -> str:
    if len(text.encode()) > _NAME_MAX_BYTES:
        raise argparse.ArgumentTypeError("a name has at most 255 bytes")
    return text
