"""The durable topology of a vhost: exported as changes for a checkpoint, and rebuilt at startup."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from broker.core.arguments import read_typed
from broker.core.names import is_predeclared
from broker.core.queue.queue import Queue
from broker.core.queue.queue_arguments import QueueDeclaration
from broker.core.topology.changes import Change, bound, exchange_declared, new_queue
from broker.core.vhost import Vhost
from broker.routing.bundle import Bundle
from broker.routing.exchange import Exchange

_End = tuple[str, int]  # one end of a binding: the name and incarnation of an exchange, or "" and a queue's number
_Identity = tuple[_End, _End, str, str]
BUNDLES_PER_STEP: Final = 64


class ChangeFold:
    """The exchanges and queues, by name, and the bindings that result from a sequence of changes, some of which may
    occur twice. A deletion does not visit the bindings: each binding contains its queue's number and its exchanges'
    incarnations, and `existing_bindings` skips those of deleted queues and exchanges.
    """

    def __init__(self, changes: Iterable[Change]) -> None:
        self.exchanges: dict[str, Change] = {}
        self.queues: dict[str, Change] = {}
        self.last_number = 0
        self.of_producers: list[Change] = []
        self._incarnations: dict[str, int] = {}
        self._bindings: dict[_Identity, Change] = {}
        for change in changes:
            _FOLD[change["change"]](self, change)

    def exchange_declared(self, change: Change) -> None:
        self.exchanges.setdefault(change["name"], change)

    def exchange_deleted(self, change: Change) -> None:
        name = change["name"]
        self.exchanges.pop(name, None)
        self._incarnations[name] = self._incarnations.get(name, 0) + 1

    def queue_declared(self, change: Change) -> None:
        declared = self.queues.get(change["name"])
        if declared is None or declared["number"] == change["number"]:
            self.queues[change["name"]] = change
        self.last_number = max(self.last_number, change["number"])

    def queue_deleted(self, change: Change) -> None:
        declared = self.queues.get(change["name"])
        if declared is not None and declared["number"] == change["number"]:
            del self.queues[change["name"]]
        self.last_number = max(self.last_number, change["number"])

    def bound(self, change: Change) -> None:
        self._bindings.setdefault(self._identity(change), change)

    def unbound(self, change: Change) -> None:
        self._bindings.pop(self._identity(change), None)

    def of_producer(self, change: Change) -> None:
        self.of_producers.append(change)

    def existing_bindings(self) -> list[Change]:
        """Return the bindings whose ends both exist, in the order in which they were made."""
        return [
            change
            for identity, change in self._bindings.items()
            if self._ends_exist(change) and identity == self._identity(change)
        ]

    def _ends_exist(self, change: Change) -> bool:
        if not self._exchange_exists(change["exchange"]):
            return False
        if "destination" in change:
            return self._exchange_exists(change["destination"])
        queue = self.queues.get(change["queue"])
        return queue is not None and bool(queue["number"] == change["number"])

    def _exchange_exists(self, name: str) -> bool:
        return name in self.exchanges or is_predeclared(name)

    def _identity(self, change: Change) -> _Identity:
        source = change["exchange"]
        if "destination" in change:
            name = change["destination"]
            to: _End = (name, self._incarnations.get(name, 0))
        else:
            to = ("", change["number"])  # no exchange with bindings has the empty name
        table = change["arguments"]
        arguments = json.dumps(table, sort_keys=True) if table else ""
        return to, (source, self._incarnations.get(source, 0)), change["key"], arguments


_FOLD: Final[dict[str, Callable[[ChangeFold, Change], None]]] = {
    "exchange_declared": ChangeFold.exchange_declared,
    "exchange_deleted": ChangeFold.exchange_deleted,
    "queue_declared": ChangeFold.queue_declared,
    "queue_deleted": ChangeFold.queue_deleted,
    "bound": ChangeFold.bound,
    "unbound": ChangeFold.unbound,
    "producer_claimed": ChangeFold.of_producer,
    "producer_numbers": ChangeFold.of_producer,
    "producer_blocks": ChangeFold.of_producer,
    "producer_used": ChangeFold.of_producer,
}


class TopologySnapshot:
    """A snapshot of the durable exchanges, queues and bindings and of the producers, as the changes that create them.

    The constructor does not encode the changes: the iteration does, possibly in a thread.
    Cost: O(n) references.
    """

    def __init__(self, vhost: Vhost, *, at_once: bool = True) -> None:
        """Without `at_once`, the caller runs `copy_bindings` later. Bindings may change until then, provided that all
        changes made after this call are applied after the snapshot.
        """
        self._exchanges = list(vhost.exchanges.values())
        self.queues = list(vhost.queues.values())
        self._bundles: list[Bundle[Exchange]] = []
        self._producers = vhost.producers.snapshot()
        if at_once:
            for _ in self.copy_bindings():
                pass

    def copy_bindings(self) -> Iterator[None]:
        """Copy the bindings, in one step for each destination and each BUNDLES_PER_STEP of its sources."""
        destinations: list[Queue | Exchange] = [*self._exchanges, *self.queues]
        for destination in destinations:
            if destination.durable:
                for number, (source, bundle) in enumerate(list(destination.incoming.items()), 1):
                    if source.durable and not source.deleted:
                        self._bundles.append(bundle.copy())
                    if number % BUNDLES_PER_STEP == 0:
                        yield
            yield

    def __iter__(self) -> Iterator[Change]:
        """Yield the changes, bindings last."""
        yield from self._producers()
        for exchange in self._exchanges:
            if exchange.durable and not is_predeclared(exchange.name):
                yield exchange_declared(exchange)
        for queue in self.queues:
            if queue.durable:
                yield new_queue(queue.declaration)
        for bundle in self._bundles:
            for key, arguments in bundle.items():
                yield bound(bundle.destination, bundle.source, key, arguments)


def restore(vhost: Vhost, changes: Iterable[Change]) -> None:
    """Create in a new vhost the topology that results from the changes, without journaling it. A queue that the changes
    also delete is never created.
    """
    fold = ChangeFold(changes)
    for change in fold.exchanges.values():
        vhost.exchanges.add(
            change["name"],
            change["type"],
            durable=True,
            auto_delete=change["auto_delete"],
            internal=change["internal"],
            arguments=read_typed(change["arguments"]),
        )
    for change in fold.queues.values():
        vhost.queues.add(
            QueueDeclaration(
                change["name"],
                change["number"],
                auto_delete=change["auto_delete"],
                arguments=read_typed(change["arguments"]),
                recovered=change.get("recovered", False),
            )
        )
    for change in fold.existing_bindings():
        exchange = vhost.exchanges[change["exchange"]]
        to_exchange = "destination" in change
        destination = vhost.exchanges[change["destination"]] if to_exchange else vhost.queues[change["queue"]]
        vhost.bindings.live.add(exchange, destination, change["key"], read_typed(change["arguments"]))
    vhost.queues.reserve_numbers(fold.last_number + 1)
    vhost.producers.restore(fold.of_producers)
