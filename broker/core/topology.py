"""Changes of a vhost's durable topology as JSON, the way the log and the checkpoints keep them.

A change is a plain dictionary with the key `change`. Applied in order they make the same exchanges, queues and
bindings; applying a change that is already there changes nothing, as a checkpoint and the log behind it may overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.core.arguments import from_json, to_json
from broker.core.names import is_predeclared
from broker.core.queue import Queue
from broker.routing.binding import Binding
from broker.routing.exchange import Exchange, make_exchange

if TYPE_CHECKING:
    from broker.core.vhost import Vhost

__all__ = ["Change", "binding_is_durable", "restore", "snapshot"]

Change = dict[str, Any]


def exchange_declared(exchange: Exchange) -> Change:
    """Returns the change that makes an exchange."""
    return {
        "change": "exchange_declared",
        "name": exchange.name,
        "type": exchange.type,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": arguments_to_json(exchange.arguments),
    }


def exchange_deleted(exchange: Exchange) -> Change:
    """Returns the change that deletes an exchange with its bindings."""
    return {"change": "exchange_deleted", "name": exchange.name}


def queue_declared(queue: Queue) -> Change:
    """Returns the change that makes a queue under its number, which names its messages in the log."""
    return {
        "change": "queue_declared",
        "name": queue.name,
        "number": queue.number,
        "auto_delete": queue.auto_delete,
        "arguments": arguments_to_json(queue.arguments),
    }


def queue_deleted(queue: Queue) -> Change:
    """Returns the change that deletes a queue with its bindings."""
    return {"change": "queue_deleted", "name": queue.name, "number": queue.number}


def bound(queue: Queue, exchange: Exchange, key: str, arguments: Mapping[str, Any]) -> Change:
    """Returns the change that adds a binding."""
    return _binding("bound", queue, exchange, key, arguments)


def unbound(queue: Queue, exchange: Exchange, key: str, arguments: Mapping[str, Any]) -> Change:
    """Returns the change that removes a binding."""
    return _binding("unbound", queue, exchange, key, arguments)


def binding_is_durable(binding: Binding, exchange: Exchange) -> bool:
    """Tells whether a binding outlives the broker: both its ends must."""
    queue: Queue = binding.destination
    return exchange.durable and queue.durable


def arguments_to_json(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an argument table as JSON that keeps the types."""
    return {key: to_json(value) for key, value in arguments.items()}


def arguments_from_json(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the argument table that `arguments_to_json` was given."""
    return {key: from_json(value) for key, value in arguments.items()}


def _binding(change: str, queue: Queue, exchange: Exchange, key: str, arguments: Mapping[str, Any]) -> Change:
    return {
        "change": change,
        "exchange": exchange.name,
        "queue": queue.name,
        "key": key,
        "arguments": arguments_to_json(arguments),
    }


def snapshot(vhost: Vhost) -> list[Change]:
    """Returns the changes that make a vhost's durable exchanges, queues and bindings of this moment."""
    made = [exchange for exchange in vhost.exchanges.values() if exchange.durable and not is_predeclared(exchange.name)]
    changes = [exchange_declared(exchange) for exchange in made]
    for queue in vhost.queues.values():
        if not queue.durable:
            continue
        changes.append(queue_declared(queue))
        changes.extend(
            bound(queue, exchange, binding.key, binding.arguments)
            for binding, exchange in queue.bindings.items()
            if exchange.durable
        )
    return changes


def restore(vhost: Vhost, changes: Iterable[Change]) -> None:
    """Applies changes to a vhost in order.

    A change that is there already, or whose queue or exchange is gone, is skipped.
    """
    for change in changes:
        _RESTORE[change["change"]](vhost, change)


def _restore_exchange(vhost: Vhost, change: Change) -> None:
    name = change["name"]
    if name not in vhost.exchanges:
        vhost.exchanges[name] = make_exchange(
            name,
            change["type"],
            durable=True,
            auto_delete=change["auto_delete"],
            internal=change["internal"],
            arguments=arguments_from_json(change["arguments"]),
        )


def _restore_exchange_deleted(vhost: Vhost, change: Change) -> None:
    exchange = vhost.exchanges.pop(change["name"], None)
    if exchange is not None:
        for binding in exchange.remove_all():
            del binding.destination.bindings[binding]


def _restore_queue(vhost: Vhost, change: Change) -> None:
    if change["name"] not in vhost.queues:
        vhost.add_queue(
            change["name"],
            number=change["number"],
            durable=True,
            exclusive_owner=None,
            auto_delete=change["auto_delete"],
            arguments=arguments_from_json(change["arguments"]),
        )


def _restore_queue_deleted(vhost: Vhost, change: Change) -> None:
    name, number = change["name"], change["number"]
    vhost.next_queue_number = max(vhost.next_queue_number, number + 1)
    queue = vhost.queues.get(name)
    if queue is not None and queue.number == number:
        del vhost.queues[name]
        for binding, exchange in queue.bindings.items():
            exchange.remove(binding)


def _restore_bound(vhost: Vhost, change: Change) -> None:
    exchange, queue = vhost.exchanges.get(change["exchange"]), vhost.queues.get(change["queue"])
    if exchange is not None and queue is not None:
        binding = exchange.bind(queue, change["key"], arguments_from_json(change["arguments"]))
        if binding is not None:
            queue.bindings[binding] = exchange


def _restore_unbound(vhost: Vhost, change: Change) -> None:
    exchange, queue = vhost.exchanges.get(change["exchange"]), vhost.queues.get(change["queue"])
    if exchange is not None and queue is not None:
        binding = exchange.unbind(queue, change["key"], arguments_from_json(change["arguments"]))
        if binding is not None:
            del queue.bindings[binding]


_RESTORE: Final[dict[str, Callable[[Vhost, Change], None]]] = {
    "exchange_declared": _restore_exchange,
    "exchange_deleted": _restore_exchange_deleted,
    "queue_declared": _restore_queue,
    "queue_deleted": _restore_queue_deleted,
    "bound": _restore_bound,
    "unbound": _restore_unbound,
}
