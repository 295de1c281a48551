"""Folds the history of a vhost's durable topology: what is left once every change was applied in order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Final

from broker.core.names import is_predeclared
from broker.core.topology.changes import Change

__all__ = ["ChangeFold"]

_End = tuple[str, int]  # one end of a binding: an exchange and which of its lives, or no name and a queue's number
_Identity = tuple[_End, _End, str, str]


class ChangeFold:
    """The exchanges, queues and bindings that the changes read so far amount to, by name.

    A change that was applied before, or whose queue or exchange is gone, is passed over. A deletion costs nothing for
    the bindings: each names the queue's number and counts the lives of its exchanges, and a binding of a former life is
    passed over at the end.
    """

    def __init__(self, changes: Iterable[Change]) -> None:
        self.exchanges: dict[str, Change] = {}
        self.queues: dict[str, Change] = {}
        self.last_number = 0
        self.of_producers: list[Change] = []
        self._lives: dict[str, int] = {}
        self._bindings: dict[_Identity, Change] = {}
        for change in changes:
            _FOLD[change["change"]](self, change)

    def exchange_declared(self, change: Change) -> None:
        self.exchanges.setdefault(change["name"], change)

    def exchange_deleted(self, change: Change) -> None:
        name = change["name"]
        self.exchanges.pop(name, None)
        self._lives[name] = self._lives.get(name, 0) + 1

    def queue_declared(self, change: Change) -> None:
        standing = self.queues.get(change["name"])
        if standing is None or standing["number"] == change["number"]:
            self.queues[change["name"]] = change
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
        """Return the bindings whose ends exist, in the order in which they were made."""
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
