"""The changes of a vhost's durable topology, as dictionaries that the log and the checkpoints contain as JSON, and the
journal that records them. Applying a change twice has no further effect, so a checkpoint and the log after it may
overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mypy_extensions import mypyc_attr

from broker.core.arguments import read_typed, typed_table
from broker.core.queue.queue import Queue
from broker.core.queue.queue_arguments import QueueDeclaration
from broker.core.queue.rules import queue_rules
from broker.routing.exchange import Exchange

Change = dict[str, Any]
Subject = tuple[str, ...]
"""What a change is about: the kind of an object and its names."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Journal:
    """Decide whether changes are made. The journal of a standalone broker only records durable changes; in a cluster,
    the nodes have to agree.
    """

    def __init__(self, record: Callable[[Change], None] = lambda _change: None) -> None:
        self._record = record

    def decide(self, change: Change, *, durable: bool = True, owner: object | None = None) -> None:
        """Decide a change, which the caller applies in memory when this returns.

        Shapes: `owner` is the connection of the exclusive queue that the change is about, if any.
        Raises: in a cluster, ChannelError 406, or Postponed until the nodes have agreed: then the caller runs again.
        """
        if durable:
            self._record(change)

    def retire(self, change: Change, *, durable: bool) -> bool:
        """Decide the deletion of an unused queue, for which no method waits, and return whether the caller deletes it
        now. In a cluster, all nodes delete it later, unless another node uses it.
        """
        self.decide(change, durable=durable)
        return True


def exchange_declared(exchange: Exchange) -> Change:
    """Return the change that creates an exchange."""
    return {
        "change": "exchange_declared",
        "name": exchange.name,
        "type": exchange.type,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": typed_table(exchange.arguments),
    }


def exchange_deleted(exchange: Exchange) -> Change:
    """Return the change that deletes an exchange with its bindings."""
    return {"change": "exchange_deleted", "name": exchange.name}


def new_queue(declaration: QueueDeclaration) -> Change:
    """Return the change that creates a queue, or changes the arguments of the existing queue with its number."""
    change = {
        "change": "queue_declared",
        "name": declaration.name,
        "number": declaration.number,
        "auto_delete": declaration.auto_delete,
        "arguments": typed_table(declaration.arguments),
    }
    return {**change, "recovered": True} if declaration.recovered else change


def queue_deleted(queue: Queue) -> Change:
    """Return the change that deletes a queue with its bindings."""
    return {"change": "queue_deleted", "name": queue.name, "number": queue.number}


def bound(destination: Queue | Exchange, exchange: Exchange, key: str, arguments: Mapping[str, Any]) -> Change:
    """Return the change that adds a binding."""
    return _binding("bound", destination, exchange, key, arguments)


def unbound(destination: Queue | Exchange, exchange: Exchange, key: str, arguments: Mapping[str, Any]) -> Change:
    """Return the change that removes a binding."""
    return _binding("unbound", destination, exchange, key, arguments)


def subject_of(change: Change) -> Subject:
    """Return what a change is about."""
    kind: str = change["change"]
    if kind.startswith("queue_"):
        return queue_subject(change["name"])
    if kind.startswith("exchange_"):
        return exchange_subject(change["name"])
    if kind in ("bound", "unbound"):
        if "queue" in change:
            return binding_subject(change["exchange"], "queue", change["queue"], change["key"])
        return binding_subject(change["exchange"], "exchange", change["destination"], change["key"])
    return (kind,)


def queue_subject(name: str) -> Subject:
    """Return the subject of changes of a queue."""
    return ("queue", name)


def exchange_subject(name: str) -> Subject:
    """Return the subject of changes of an exchange."""
    return ("exchange", name)


def binding_subject(exchange: str, kind: str, destination: str, key: str) -> Subject:
    """Return the subject of changes of the bindings with a key, whatever their arguments."""
    return ("binding", exchange, kind, destination, key)


def _binding(
    change: str, destination: Queue | Exchange, exchange: Exchange, key: str, arguments: Mapping[str, Any]
) -> Change:
    to: Change
    if isinstance(destination, Queue):
        # The number distinguishes the queue from a later one of that name.
        to = {"queue": destination.name, "number": destination.number}
    else:
        to = {"destination": destination.name}
    table = typed_table(arguments) if arguments else {}
    return {"change": change, "exchange": exchange.name, **to, "key": key, "arguments": table}


def deleted_numbers(changes: Iterable[Change]) -> set[int]:
    """Return the numbers of the queues that changes delete, and of their levels, but not of levels created by use."""
    levels: dict[int, int] = {}
    deleted: set[int] = set()
    for change in changes:
        if change["change"] == "queue_declared":
            levels[change["number"]] = queue_rules(read_typed(change["arguments"])).max_priority + 1
        elif change["change"] == "queue_deleted":
            number = change["number"]
            deleted.update(range(number, number + levels.get(number, 1)))
    return deleted
