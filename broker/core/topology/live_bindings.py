"""Add, remove and count the bindings of a vhost, and notify watches of each change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from broker.core.deadlines import Deadlines
from broker.core.queue.queue import Queue
from broker.core.topology.deferred_unbinding import DeferredUnbinding
from broker.routing.bundle import Bundle
from broker.routing.exchange import Exchange
from broker.routing.pattern import PatternLimits


class TopologyWatch(Protocol):
    """An observer that is notified of each change of a vhost's exchanges and bindings."""

    def declared(self, exchange: Exchange) -> None:
        """Handle a new exchange."""

    def deleted(self, exchange: Exchange) -> None:
        """Handle a deleted exchange, after `ended` for its bindings."""

    def bound(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        """Handle a new binding."""

    def unbound(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        """Handle a removed binding."""

    def ended(self, bundle: Bundle[Exchange]) -> None:
        """Handle bindings that ended with their source or destination; the bundle is emptied after the call."""


class LiveBindings:
    """Add and remove the bindings of a vhost. Callers may append to ``watches``.

    Invariant: ``count`` is the number of bindings, without those that ``deferred`` removes because their queue or
        exchange was deleted.
    """

    def __init__(self, deadlines: Deadlines) -> None:
        self.count = 0
        self.deferred = DeferredUnbinding(deadlines)
        self.watches: list[TopologyWatch] = []

    def add(
        self,
        source: Exchange,
        destination: Queue | Exchange,
        key: str,
        arguments: Mapping[str, Any],
        limits: PatternLimits | None = None,
    ) -> bool:
        """Add a binding without journaling it, and return whether it is new.

        Raises: ValueError, with nothing changed.
        """
        is_new = source.bind(destination, key, arguments, limits)
        self.count += is_new
        if is_new:
            for watch in self.watches:
                watch.bound(source, destination, key, arguments)
        return is_new

    def remove(
        self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Remove a binding and return its arguments; None if there is no such binding."""
        made_with = source.unbind(destination, key, arguments)
        if made_with is not None:
            self.count -= 1
            for watch in self.watches:
                watch.unbound(source, destination, key, made_with)
        return made_with

    def end_leading_to(self, destination: Queue | Exchange) -> list[Exchange]:
        """End the bindings to a queue or exchange that is being deleted, and return their sources.

        Cost: O(sources), and the removal of small bundles; large ones are removed from the indexes in later turns.
        """
        bundles = [bundle for source, bundle in destination.incoming.items() if not source.deleted]
        for bundle in bundles:
            self.count -= len(bundle)
            for watch in self.watches:
                watch.ended(bundle)
            self.deferred.part(bundle)
        return [bundle.source for bundle in bundles]

    def end_of_exchange(self, exchange: Exchange) -> list[Exchange]:
        """End all bindings of an exchange that is being deleted, and return the other exchanges among their sources."""
        sources = self.end_leading_to(exchange)
        self.count -= exchange.binding_count
        bundles = exchange.end()
        for watch in self.watches:
            for bundle in bundles:
                watch.ended(bundle)
        self.deferred.take(bundles)
        return [source for source in sources if source is not exchange]
