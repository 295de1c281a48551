"""Entries of a definitions document that clients can declare: exchanges, queues and bindings of a vhost."""

from __future__ import annotations

from typing import Any, Final

from broker.administration.rehearsal import Touched
from broker.amqp.errors import ChannelError
from broker.core.definitions.document import BindingEntry, ExchangeEntry, QueueEntry
from broker.core.names import Resource
from broker.core.queue.queue import Queue
from broker.core.topology.equivalence import check_same_exchange, check_same_queue
from broker.core.vhost import Vhost
from broker.routing.exchange import Exchange

TOPOLOGY: Final = ("exchanges", "queues", "bindings")  # in the order of their dependencies
RESERVED_PREFIX: Final = "amq."  # RabbitMQ skips such entries too: they exist already or cannot be declared

Entry = ExchangeEntry | QueueEntry | BindingEntry


def touch(touched: Touched, entry: Entry) -> None:
    """Add the exchanges, queues and bindings that an entry names to `touched`."""
    if isinstance(entry, ExchangeEntry):
        touched.exchanges.add(entry.name)
    elif isinstance(entry, QueueEntry):
        touched.queues.add(entry.name)
    else:
        touched.add_binding(entry.source, entry.destination, to_exchange=entry.to_exchange)


def is_declared(vhost: Vhost, entry: Entry) -> bool:
    """Return whether declaring an entry would change nothing: it exists with equal properties, or it is skipped."""
    if isinstance(entry, BindingEntry):
        return not entry.source or _is_bound(vhost, entry)
    if not entry.name or entry.name.startswith(RESERVED_PREFIX):
        return True
    try:
        if isinstance(entry, ExchangeEntry):
            if (exchange := vhost.exchanges.get(entry.name)) is None:
                return False
            check_same_exchange(Resource("exchange", entry.vhost, entry.name), exchange, **_declaration(entry))
        else:
            queue = vhost.queues.get(entry.name)
            if queue is None or queue.exclusive_owner is not None:
                return False
            check_same_queue(Resource("queue", entry.vhost, entry.name), queue, **_declaration(entry))
    except ChannelError:  # the rehearsal refuses the entry with the error that a client gets
        return False
    return True


def _declaration(entry: ExchangeEntry | QueueEntry) -> dict[str, Any]:
    """Return the declaration of an exchange or a queue, without its name."""
    flags = {"durable": entry.durable, "auto_delete": entry.auto_delete, "arguments": dict(entry.arguments)}
    return flags | ({"type": entry.type, "internal": entry.internal} if isinstance(entry, ExchangeEntry) else {})


def _is_bound(vhost: Vhost, entry: BindingEntry) -> bool:
    source = vhost.exchanges.get(entry.source)
    if source is None:
        return False
    if entry.to_exchange:
        destination: Exchange | Queue | None = vhost.exchanges.get(entry.destination)
    else:
        destination = vhost.queues.get(entry.destination)
        if destination is not None and (destination.is_internal or destination.exclusive_owner is not None):
            return False
    return destination is not None and source.is_bound(destination, entry.routing_key, entry.arguments)


def declare(vhost: Vhost, entry: Entry) -> bool:
    """Declare an entry unless it is skipped, and return whether it is new. Raises: Postponed, ProtocolError."""
    if isinstance(entry, BindingEntry):
        return _bind(vhost, entry)
    if not entry.name or entry.name.startswith(RESERVED_PREFIX):
        return False
    declared = vhost.exchanges if isinstance(entry, ExchangeEntry) else vhost.queues
    is_new = entry.name not in declared
    declared.declare(entry.name, **_declaration(entry))
    return is_new


def _bind(vhost: Vhost, entry: BindingEntry) -> bool:
    if not entry.source:  # the default exchange, to which every queue is bound
        return False
    bindings, before = vhost.bindings, vhost.bindings.live.count
    ends = (entry.destination, entry.source, entry.routing_key, dict(entry.arguments))
    (bindings.bind_exchange if entry.to_exchange else bindings.bind)(*ends)
    return bindings.live.count > before


def remove(vhost: Vhost, entry: Entry) -> None:
    """Delete the exchange, the queue or the binding of an entry."""
    if isinstance(entry, ExchangeEntry):
        vhost.exchanges.delete(entry.name)
    elif isinstance(entry, QueueEntry):
        vhost.queues.delete(entry.name, None)
    else:
        ends = (entry.destination, entry.source, entry.routing_key, dict(entry.arguments))
        (vhost.bindings.unbind_exchange if entry.to_exchange else vhost.bindings.unbind)(*ends)
