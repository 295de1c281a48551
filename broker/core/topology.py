"""Changes of a vhost's durable topology as JSON, the way the log and the checkpoints keep them.

A change is a plain dictionary with the key `change`. Applied in order they make the same exchanges, queues and
bindings; applying a change that is already there changes nothing, as a checkpoint and the log behind it may overlap.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.core.arguments import from_json, to_json
from broker.core.names import is_predeclared
from broker.core.queue import Queue
from broker.routing.binding import Binding
from broker.routing.exchange import Exchange

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
        "number": queue.number,  # not that of a namesake which came later
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
    """Makes in a new vhost what the changes come to.

    The history is folded before anything is made: a queue that was deleted again never comes to life, nor has a worker.
    """
    fold = _Fold()
    for change in changes:
        _FOLD[change["change"]](fold, change)
    for change in fold.exchanges.values():
        vhost.add_exchange(
            change["name"],
            change["type"],
            durable=True,
            auto_delete=change["auto_delete"],
            internal=change["internal"],
            arguments=arguments_from_json(change["arguments"]),
        )
    for change in fold.queues.values():
        vhost.add_queue(
            change["name"],
            number=change["number"],
            durable=True,
            exclusive_owner=None,
            auto_delete=change["auto_delete"],
            arguments=arguments_from_json(change["arguments"]),
        )
    for change in fold.standing_bindings():
        queue, exchange = vhost.queues[change["queue"]], vhost.exchanges[change["exchange"]]
        binding = exchange.bind(queue, change["key"], arguments_from_json(change["arguments"]))
        if binding is not None:
            queue.bindings[binding] = exchange
    vhost.next_queue_number = max(vhost.next_queue_number, fold.last_number + 1)


class _Fold:
    """Is what the changes read so far come to, by name.

    A change that is there already, or whose queue or exchange is gone, is passed over. A deletion costs nothing for the
    bindings: each names the queue's number and the exchange's life, and one of a former life is passed over at the end.
    """

    def __init__(self) -> None:
        self.exchanges: dict[str, Change] = {}
        self.queues: dict[str, Change] = {}
        self.last_number = 0
        self._lives: dict[str, int] = {}
        self._bindings: dict[tuple[int, int, str, str, str], Change] = {}

    def exchange_declared(self, change: Change) -> None:
        self.exchanges.setdefault(change["name"], change)

    def exchange_deleted(self, change: Change) -> None:
        name = change["name"]
        self.exchanges.pop(name, None)
        self._lives[name] = self._lives.get(name, 0) + 1

    def queue_declared(self, change: Change) -> None:
        self.queues.setdefault(change["name"], change)
        self.last_number = max(self.last_number, change["number"])

    def queue_deleted(self, change: Change) -> None:
        standing = self.queues.get(change["name"])
        if standing is not None and standing["number"] == change["number"]:
            del self.queues[change["name"]]
        self.last_number = max(self.last_number, change["number"])

    def bound(self, change: Change) -> None:
        self._bindings.setdefault(self._identity(change), change)

    def unbound(self, change: Change) -> None:
        self._bindings.pop(self._identity(change), None)

    def standing_bindings(self) -> list[Change]:
        """Returns the bindings whose ends are there, in the order in which they were made."""
        return [
            change
            for identity, change in self._bindings.items()
            if self._stands(change) and identity == self._identity(change)
        ]

    def _stands(self, change: Change) -> bool:
        name = change["exchange"]
        queue = self.queues.get(change["queue"])
        there = name in self.exchanges or is_predeclared(name)
        return there and queue is not None and bool(queue["number"] == change["number"])

    def _identity(self, change: Change) -> tuple[int, int, str, str, str]:
        life = self._lives.get(change["exchange"], 0)
        arguments = json.dumps(change["arguments"], sort_keys=True)
        return change["number"], life, change["exchange"], change["key"], arguments


_FOLD: Final[dict[str, Callable[[_Fold, Change], None]]] = {
    "exchange_declared": _Fold.exchange_declared,
    "exchange_deleted": _Fold.exchange_deleted,
    "queue_declared": _Fold.queue_declared,
    "queue_deleted": _Fold.queue_deleted,
    "bound": _Fold.bound,
    "unbound": _Fold.unbound,
}
