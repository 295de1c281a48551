"""Changes of a vhost's durable topology as JSON, the way the log and the checkpoints keep them.

A change is a plain dictionary with the key `change`. Applied in order they make the same exchanges, queues and
bindings; applying a change that is already there changes nothing, as a checkpoint and the log behind it may overlap.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.core.arguments import from_json, to_json
from broker.core.names import is_predeclared
from broker.core.queue.queue import Queue
from broker.routing.exchange import Exchange

if TYPE_CHECKING:
    from broker.core.vhost import Vhost
    from broker.routing.bundle import Bundle

__all__ = ["Change", "TopologySnapshot", "restore", "snapshot"]

Change = dict[str, Any]
_End = tuple[str, int]  # one end of a binding: an exchange and which of its lives, or no name and a queue's number
_Identity = tuple[_End, _End, str, str]


def exchange_declared(exchange: Exchange) -> Change:
    """Return the change that makes an exchange."""
    return {
        "change": "exchange_declared",
        "name": exchange.name,
        "type": exchange.type,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": arguments_to_json(exchange.arguments),
    }


def exchange_deleted(exchange: Exchange) -> Change:
    """Return the change that deletes an exchange with its bindings."""
    return {"change": "exchange_deleted", "name": exchange.name}


def queue_declared(queue: Queue) -> Change:
    """Return the change that makes a queue under its number, which names its messages in the log."""
    change = {
        "change": "queue_declared",
        "name": queue.name,
        "number": queue.number,
        "auto_delete": queue.auto_delete,
        "arguments": arguments_to_json(queue.arguments),
    }
    return {**change, "recovered": True} if queue.recovered else change


def queue_deleted(queue: Queue) -> Change:
    """Return the change that deletes a queue with its bindings."""
    return {"change": "queue_deleted", "name": queue.name, "number": queue.number}


def bound(destination: Queue | Exchange, exchange: Exchange, key: str, arguments: Mapping[str, Any]) -> Change:
    """Return the change that adds a binding."""
    return _binding("bound", destination, exchange, key, arguments)


def unbound(destination: Queue | Exchange, exchange: Exchange, key: str, arguments: Mapping[str, Any]) -> Change:
    """Return the change that removes a binding."""
    return _binding("unbound", destination, exchange, key, arguments)


def arguments_to_json(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return an argument table as JSON that keeps the types."""
    return {key: to_json(value) for key, value in arguments.items()}


def arguments_from_json(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the argument table that `arguments_to_json` was given."""
    return {key: from_json(value) for key, value in arguments.items()}


def _binding(
    change: str, destination: Queue | Exchange, exchange: Exchange, key: str, arguments: Mapping[str, Any]
) -> Change:
    to: Change
    if isinstance(destination, Queue):
        to = {"queue": destination.name, "number": destination.number}  # not that of a namesake which came later
    else:
        to = {"destination": destination.name}
    table = arguments_to_json(arguments) if arguments else {}
    return {"change": change, "exchange": exchange.name, **to, "key": key, "arguments": table}


class TopologySnapshot:
    """The durable exchanges, queues and bindings of one moment, and the producers, as the changes that make them.

    What may change is copied when it is made, which is quick. What queues and exchanges were declared as is told later,
    and in a thread: a hundred thousand of them take a fifth of a second.
    """

    __slots__ = ("_exchanges", "_led_to", "_producers", "_queues")

    def __init__(self, vhost: Vhost) -> None:
        exchanges = [exchange for exchange in vhost.exchanges.values() if exchange.durable]
        self._exchanges = [exchange for exchange in exchanges if not is_predeclared(exchange.name)]
        self._queues = [queue for queue in vhost.queues.values() if queue.durable]
        self._led_to = [*_arriving(exchanges), *_arriving(self._queues)]
        self._producers = vhost.producers.snapshot()

    def __iter__(self) -> Iterator[Change]:
        """Yield the changes, bindings last."""
        yield from self._producers()
        yield from map(exchange_declared, self._exchanges)
        yield from map(queue_declared, self._queues)
        for bundle in self._led_to:
            for key, arguments in bundle.items():
                yield bound(bundle.destination, bundle.source, key, arguments)


def _arriving(destinations: Iterable[Queue | Exchange]) -> Iterator[Bundle[Exchange]]:
    """Yield copies of what leads from durable exchanges to these."""
    for destination in destinations:
        for source, bundle in destination.incoming.items():
            if source.durable and not source.deleted:
                yield bundle.copy()


def snapshot(vhost: Vhost) -> list[Change]:
    """Return the changes that make a vhost's durable exchanges, queues and bindings of this moment."""
    return list(TopologySnapshot(vhost))


def restore(vhost: Vhost, changes: Iterable[Change]) -> None:
    """Make in a new vhost what the changes come to.

    The history is folded before anything is made: a queue that was deleted again never comes to life, nor has a worker.
    """
    fold = _Fold()
    for change in changes:
        _FOLD[change["change"]](fold, change)
    for change in fold.exchanges.values():
        vhost.exchanges.add(
            change["name"],
            change["type"],
            durable=True,
            auto_delete=change["auto_delete"],
            internal=change["internal"],
            arguments=arguments_from_json(change["arguments"]),
        )
    for change in fold.queues.values():
        vhost.queues.add(
            change["name"],
            number=change["number"],
            durable=True,
            exclusive_owner=None,
            auto_delete=change["auto_delete"],
            arguments=arguments_from_json(change["arguments"]),
            recovered=change.get("recovered", False),
        )
    for change in fold.standing_bindings():
        exchange = vhost.exchanges[change["exchange"]]
        to_exchange = "destination" in change
        destination = vhost.exchanges[change["destination"]] if to_exchange else vhost.queues[change["queue"]]
        vhost.bindings.add(exchange, destination, change["key"], arguments_from_json(change["arguments"]))
    vhost.next_queue_number = max(vhost.next_queue_number, fold.last_number + 1)
    vhost.producers.restore(fold.of_producers)


class _Fold:
    """What the changes read so far come to, by name.

    A change that is there already, or whose queue or exchange is gone, is passed over. A deletion costs nothing for the
    bindings: each names the queue's number and the lives of the exchanges, and one of a former life is passed over at
    the end.
    """

    def __init__(self) -> None:
        self.exchanges: dict[str, Change] = {}
        self.queues: dict[str, Change] = {}
        self.last_number = 0
        self.of_producers: list[Change] = []
        self._lives: dict[str, int] = {}
        self._bindings: dict[_Identity, Change] = {}

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

    def of_producer(self, change: Change) -> None:
        self.of_producers.append(change)

    def standing_bindings(self) -> list[Change]:
        """Return the bindings whose ends are there, in the order in which they were made."""
        return [
            change
            for identity, change in self._bindings.items()
            if self._stands(change) and identity == self._identity(change)
        ]

    def _stands(self, change: Change) -> bool:
        if not self._there(change["exchange"]):
            return False
        if "destination" in change:
            return self._there(change["destination"])
        queue = self.queues.get(change["queue"])
        return queue is not None and bool(queue["number"] == change["number"])

    def _there(self, name: str) -> bool:
        return name in self.exchanges or is_predeclared(name)

    def _identity(self, change: Change) -> _Identity:
        source = change["exchange"]
        if "destination" in change:
            name = change["destination"]
            to: _End = (name, self._lives.get(name, 0))
        else:
            to = ("", change["number"])  # no exchange that leads on has the empty name
        table = change["arguments"]
        arguments = json.dumps(table, sort_keys=True) if table else ""
        return to, (source, self._lives.get(source, 0)), change["key"], arguments


_FOLD: Final[dict[str, Callable[[_Fold, Change], None]]] = {
    "exchange_declared": _Fold.exchange_declared,
    "exchange_deleted": _Fold.exchange_deleted,
    "queue_declared": _Fold.queue_declared,
    "queue_deleted": _Fold.queue_deleted,
    "bound": _Fold.bound,
    "unbound": _Fold.unbound,
    "producer_claimed": _Fold.of_producer,
    "producer_numbers": _Fold.of_producer,
    "producer_blocks": _Fold.of_producer,
    "producer_used": _Fold.of_producer,
}
