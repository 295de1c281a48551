"""The durable topology of a vhost: told as changes for a checkpoint, and made again at a start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from broker.core.names import is_predeclared
from broker.core.queue.declaration import QueueDeclaration
from broker.core.topology.change_fold import ChangeFold
from broker.core.topology.changes import Change, arguments_from_json, bound, exchange_declared, queue_declared

if TYPE_CHECKING:
    from broker.core.queue.queue import Queue
    from broker.core.vhost import Vhost
    from broker.routing.bundle import Bundle
    from broker.routing.exchange import Exchange

__all__ = ["TopologySnapshot", "restore"]


class TopologySnapshot:
    """The durable exchanges, queues and bindings of one moment, and the producers, as the changes that make them.

    The constructor copies whatever may change. The changes themselves are encoded lazily, in a thread: those of a
    hundred thousand queues take a fifth of a second.
    Cost: O(n) references at once.
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
    """Yield copies of the bundles that lead from durable exchanges to some queues or exchanges."""
    for destination in destinations:
        for source, bundle in destination.incoming.items():
            if source.durable and not source.deleted:
                yield bundle.copy()


def restore(vhost: Vhost, changes: Iterable[Change]) -> None:
    """Make in a new vhost what the changes amount to; do not journal it.

    The history is folded before anything is made: a queue that was deleted again is never made and gets no worker.
    """
    fold = ChangeFold(changes)
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
            QueueDeclaration(
                change["name"],
                change["number"],
                auto_delete=change["auto_delete"],
                arguments=arguments_from_json(change["arguments"]),
                recovered=change.get("recovered", False),
            )
        )
    for change in fold.standing_bindings():
        exchange = vhost.exchanges[change["exchange"]]
        to_exchange = "destination" in change
        destination = vhost.exchanges[change["destination"]] if to_exchange else vhost.queues[change["queue"]]
        vhost.bindings.live.add(exchange, destination, change["key"], arguments_from_json(change["arguments"]))
    vhost.queues.reserve_numbers(fold.last_number + 1)
    vhost.producers.restore(fold.of_producers)
