"""The durable topology of a vhost: told as changes for a checkpoint, and made again at a start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from broker.core.names import is_predeclared
from broker.core.queue.queue import Queue
from broker.core.queue.queue_arguments import QueueDeclaration
from broker.core.topology.change_fold import ChangeFold
from broker.core.topology.changes import Change, arguments_from_json, bound, exchange_declared, queue_declared
from broker.core.vhost import Vhost
from broker.routing.bundle import Bundle
from broker.routing.exchange import Exchange

__all__ = ["TopologySnapshot", "restore"]

BUNDLES_PER_STEP: Final = 64


class TopologySnapshot:
    """The durable exchanges and queues of one moment, their bindings, and the producers, as the changes that make them.

    The constructor copies whatever may change. The changes themselves are encoded lazily, in a thread: those of a
    hundred thousand queues take a fifth of a second.
    Cost: O(n) references at once.
    """

    __slots__ = ("_exchanges", "_led_to", "_producers", "queues")

    def __init__(self, vhost: Vhost, *, at_once: bool = True) -> None:
        """Without `at_once`, `copy_bindings` is to copy the bindings, which may have changed then.

        Nothing is lost if the changes since this moment are applied after these.
        """
        self._exchanges = list(vhost.exchanges.values())
        self.queues = list(vhost.queues.values())
        self._led_to: list[Bundle[Exchange]] = []
        self._producers = vhost.producers.snapshot()
        if at_once:
            for _ in self.copy_bindings():
                pass

    def copy_bindings(self) -> Iterator[None]:
        """Copy the bindings, in a step for each queue and exchange and for each 64 of what leads to it."""
        destinations: list[Queue | Exchange] = [*self._exchanges, *self.queues]
        for destination in destinations:
            if destination.durable:
                for number, (source, bundle) in enumerate(list(destination.incoming.items()), 1):
                    if source.durable and not source.deleted:
                        self._led_to.append(bundle.copy())
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
                yield queue_declared(queue)
        for bundle in self._led_to:
            for key, arguments in bundle.items():
                yield bound(bundle.destination, bundle.source, key, arguments)


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
