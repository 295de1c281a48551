"""The flags that name exchange, queues and routing keys, and the topology that they describe."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import Final

from broker.perf.faults import BadOptions
from broker.perf.quantities import count
from broker.perf.spool import Material
from broker.perf.topology import RunTopology

KINDS: Final = ("topic", "direct", "fanout")


@dataclass(frozen=True, slots=True)
class Addressing:
    """The topology to declare, the keys to publish with, and the number of queues that each message reaches."""

    topology: RunTopology
    material: Material
    copies: int | None


def add_addressing(parser: argparse.ArgumentParser) -> None:
    """Add the flags.

    Shapes: `queue`, `exchange`, `routing_key` (None if not given), `queues`, `keys`, `type`, `predeclared`.
    """
    group = parser.add_argument_group("addressing (what you name is kept, the rest is deleted after the run)")
    group.add_argument(
        "-u", "--queue", metavar="NAME", type=_name, help="the queue; by default one that the run declares and deletes"
    )
    group.add_argument("--queues", metavar="N", type=count, default=1, help="N queues, NAME-0001 and so on")
    group.add_argument(
        "-e", "--exchange", metavar="NAME", type=_name, help="the exchange; default the default exchange"
    )
    group.add_argument("-t", "--type", choices=KINDS, default="topic", help="type of the exchange, default topic")
    group.add_argument(
        "-k", "--routing-key", metavar="KEY", type=_name, help="the routing key; default the queue's name"
    )
    group.add_argument("--keys", metavar="N", type=count, help="N changing routing keys, KEY.0001 and so on")
    group.add_argument(
        "-p",
        "--predeclared",
        action="store_true",
        help="declare and bind nothing; a missing queue or exchange is an error",
    )


def addressing_of(options: argparse.Namespace) -> Addressing:
    """Resolve the flags into exchange, queues, keys and bindings.

    Raises: BadOptions.
    """
    own = f"slotmq-perf-{os.urandom(4).hex()}"
    named = options.queue or own
    queues = numbered(named, options.queues) if options.queues > 1 else [named]
    exchange = options.exchange if options.exchange is not None else own if options.keys else ""
    if options.predeclared and options.queue is None and (options.consumers or not exchange):
        raise BadOptions("--predeclared takes a queue that is there: name it with -u")
    if not options.producers and options.queue is None:
        raise BadOptions("-x 0 consumes what others publish: name the queue with -u")
    if options.predeclared and options.queue is None:
        queues = []
    if exchange:
        keys, bindings = _through_exchange(options, queues, options.routing_key or named)
    else:
        keys, bindings = [options.routing_key] if options.routing_key else queues, []
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
    material = Material(
        exchange,
        tuple(keys),
        options.size,
        persistent="persistent" in options.flags,
        mandatory="mandatory" in options.flags,
    )
    return Addressing(topology, material, _copies(options, exchange, keys, queues))


def numbered(name: str, count_: int) -> list[str]:
    """Return `count_` numbered names of equal length.

    Raises: BadOptions for names that AMQP cannot carry.
    """
    width = max(4, len(str(count_)))
    names = [f"{name}-{number:0{width}d}" for number in range(1, count_ + 1)]
    if len(names[-1].encode()) > 255:
        raise BadOptions("the names would be longer than AMQP's 255 bytes")
    return names


def spread(queues: list[str], consumers: int) -> tuple[tuple[str, ...], ...]:
    """Return the queues of each consumer: one queue each, round-robin, or several if there are more queues."""
    if consumers >= len(queues):
        return tuple((queues[number % len(queues)],) for number in range(consumers)) if queues else ()
    return tuple(tuple(queues[number::consumers]) for number in range(consumers))


def _through_exchange(
    options: argparse.Namespace, queues: list[str], base: str
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return routing keys and bindings: each queue gets its own keys; a fan-out sends every key to every queue."""
    heads = [base] if len(queues) < 2 or options.type == "fanout" else [name.replace(".", "-") for name in queues]
    width = max(4, len(str(options.keys or 1)))
    tails = [f".{number:0{width}d}" for number in range(1, options.keys + 1)] if options.keys else [""]
    keys = [head + tail for tail in tails for head in heads]
    if any(len(key.encode()) > 255 for key in keys[-1:]):
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
    if len(text.encode()) > 255:
        raise argparse.ArgumentTypeError("a name has at most 255 bytes")
    return text
