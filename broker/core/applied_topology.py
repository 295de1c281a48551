"""Applies changes of a vhost's topology that were decided elsewhere, the same way on every node of a cluster.

To apply decides whether a change has an effect: a queue is declared if its name is free and the vhost has room, a
binding is made if its exchange and the queue of that number exist. Beside the keys that the log of a single broker has,
a change may have `durable` (false), `owner` of an exclusive queue, `holding` (the number of the queue in which an
exchange keeps delayed messages), and `limit`, of queues, exchanges or bindings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from broker.core.names import is_predeclared
from broker.core.queue.declaration import QueueDeclaration
from broker.core.queue.holding_queue import holding_name
from broker.core.queue.queue import Queue
from broker.core.topology import changes
from broker.core.topology.changes import Change, arguments_from_json

if TYPE_CHECKING:
    from broker.core.vhost import Vhost
    from broker.routing.exchange import Exchange

__all__ = ["FORGOTTEN", "all_changes", "apply"]

FORGOTTEN: Final = "vhost_forgotten"  # everything in the vhost ends
FindOwner = Callable[[Any], object]


def apply(vhost: Vhost, change: Change, find_owner: FindOwner) -> bool:
    """Apply a change that every node applies, and return whether it had an effect.

    The vhost's journal must let the change pass, with what follows from it.
    Shapes: `find_owner` returns the connection that the `owner` of a change names.
    """
    return _APPLY[change["change"]](vhost, change, find_owner)


def _declare_exchange(vhost: Vhost, change: Change, _find_owner: FindOwner) -> bool:
    name, exchanges = change["name"], vhost.exchanges
    if name in exchanges or exchanges.declared_count >= change.get("limit", exchanges.declared_count + 1):
        return False
    durable = change.get("durable", True)
    if "holding" in change:
        _add_queue(vhost, holding_name(name), change["holding"], durable=durable)
    exchange = exchanges.add(
        name,
        change["type"],
        durable=durable,
        auto_delete=change["auto_delete"],
        internal=change["internal"],
        arguments=arguments_from_json(change["arguments"]),
    )
    if exchange.delayed:
        vhost.delays.open(exchange)
    return True


def _delete_exchange(vhost: Vhost, change: Change, _find_owner: FindOwner) -> bool:
    is_there = change["name"] in vhost.exchanges
    vhost.exchanges.delete(change["name"])
    return is_there


def _declare_queue(vhost: Vhost, change: Change, find_owner: FindOwner) -> bool:
    queues = vhost.queues
    if change["name"] in queues or queues.declared_count >= change.get("limit", queues.declared_count + 1):
        return False
    queues.add(
        QueueDeclaration(
            change["name"],
            change["number"],
            durable=change.get("durable", True),
            exclusive_owner=find_owner(change["owner"]) if "owner" in change else None,
            auto_delete=change["auto_delete"],
            arguments=arguments_from_json(change["arguments"]),
        )
    )
    return True


def _add_queue(vhost: Vhost, name: str, number: int, *, durable: bool) -> None:
    vhost.queues.add(QueueDeclaration(name, number, durable=durable))


def _delete_queue(vhost: Vhost, change: Change, _find_owner: FindOwner) -> bool:
    queue = vhost.queues.get(change["name"])
    if queue is None or queue.number != change["number"]:
        return False
    vhost.queues.drop(queue)
    return True


def _bind(vhost: Vhost, change: Change, _find_owner: FindOwner) -> bool:
    source, destination = _ends(vhost, change)
    live = vhost.bindings.live
    if source is None or destination is None or live.count >= change.get("limit", live.count + 1):
        return False
    try:
        return live.add(source, destination, change["key"], arguments_from_json(change["arguments"]))
    except ValueError:  # an exchange of another type by now, which cannot take this key
        return False


def _unbind(vhost: Vhost, change: Change, _find_owner: FindOwner) -> bool:
    source, destination = _ends(vhost, change)
    if source is None or destination is None:
        return False
    arguments = arguments_from_json(change["arguments"])
    if vhost.bindings.live.remove(source, destination, change["key"], arguments) is None:
        return False
    vhost.exchanges.drop_unbound((source,))
    return True


def _ends(vhost: Vhost, change: Change) -> tuple[Exchange | None, Queue | Exchange | None]:
    """Return the source and the destination of a binding, as far as they exist."""
    source = vhost.exchanges.get(change["exchange"])
    if "destination" in change:
        return source, vhost.exchanges.get(change["destination"])
    queue = vhost.queues.get(change["queue"])
    return source, queue if queue is not None and queue.number == change["number"] else None


def _forget(vhost: Vhost, _change: Change, _find_owner: FindOwner) -> bool:
    for exchange in vhost.exchanges.declared():
        vhost.exchanges.delete(exchange.name)
    for queue in list(vhost.queues.values()):
        vhost.queues.drop(queue)
    return True


def all_changes(vhost: Vhost) -> Iterator[Change]:
    """Return the changes that make everything in a vhost, transient and exclusive things too.

    An exclusive queue has its owner itself under the key `owner`. The constructor copies whatever may change; the
    changes are made lazily. Cost: O(n) references at once.
    """
    exchanges = list(vhost.exchanges.values())
    queues = list(vhost.queues.values())
    bundles = [
        bundle.copy() for end in (*exchanges, *queues) for source, bundle in end.incoming.items() if not source.deleted
    ]
    holding = {queue.name: queue.number for queue in queues if queue.kept}
    return _made(exchanges, queues, bundles, holding)


def _made(
    exchanges: list[Exchange], queues: list[Queue], bundles: list[Any], holding: dict[str, int]
) -> Iterator[Change]:
    for exchange in exchanges:
        if not is_predeclared(exchange.name):
            change = {**changes.exchange_declared(exchange), "durable": exchange.durable}
            yield {**change, "holding": holding[holding_name(exchange.name)]} if exchange.delayed else change
    for queue in queues:
        if not queue.kept:
            change = {**changes.queue_declared(queue), "durable": queue.durable}
            yield change if queue.exclusive_owner is None else {**change, "owner": queue.exclusive_owner}
    for bundle in bundles:
        for key, arguments in bundle.items():
            yield changes.bound(bundle.destination, bundle.source, key, arguments)


_APPLY: Final[dict[str, Callable[[Vhost, Change, FindOwner], bool]]] = {
    "exchange_declared": _declare_exchange,
    "exchange_deleted": _delete_exchange,
    "queue_declared": _declare_queue,
    "queue_deleted": _delete_queue,
    "bound": _bind,
    "unbound": _unbind,
    FORGOTTEN: _forget,
}
