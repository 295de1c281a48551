"""Watchers of a vhost's exchanges and bindings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from broker.core.queue.queue import Queue
from broker.routing.bundle import Bundle
from broker.routing.exchange import Exchange

__all__ = ["TopologyWatch"]


class TopologyWatch(Protocol):
    """Is notified right after each change, and of ended bindings before their keys leave the index."""

    def declared(self, exchange: Exchange) -> None:
        """Note a new exchange."""

    def deleted(self, exchange: Exchange) -> None:
        """Note a deleted exchange, after `ended` for its bindings."""

    def bound(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        """Note a new binding."""

    def unbound(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        """Note a removed binding."""

    def ended(self, bundle: Bundle[Exchange]) -> None:
        """Note bindings that ended with their exchange or their destination; the bundle changes after the call."""
