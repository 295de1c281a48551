"""What the exchange's name in a basic.publish comes to by itself, whatever the routing key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.core.message.message import Envelope
from broker.core.publishing.publish_entry import PublishEntry
from broker.routing.route import Route

if TYPE_CHECKING:
    from broker.core.resource import Resource
    from broker.routing.exchange import Exchange

__all__ = ["PublishTarget"]


class PublishTarget:
    """An exchange that one user may publish to: it is there, not internal, and the rights were checked.

    ``narrowed`` says that the routing key has to be checked, too; ``plain`` that the exchange's own bindings and the
    routing key alone say where a message goes; ``nowhere`` is what one comes to that goes nowhere, while nobody has to
    be told.
    Invariant: valid while ``standing.live``, and until the vhost drops its publish caches.
    """

    __slots__ = ("exchange", "named", "narrowed", "nowhere", "plain", "resource", "standing")

    def __init__(self, resource: Resource, exchange: Exchange, *, narrowed: bool, traced: bool) -> None:
        self.resource = resource
        self.exchange = exchange
        self.standing = exchange.standing
        self.named = exchange.name != ""
        self.narrowed = narrowed
        self.plain = exchange.alternate is None and not exchange.onward and not exchange.by_headers and not traced
        envelope = Envelope(exchange.name, "")
        self.nowhere = PublishEntry(envelope, exchange, Route(()), mandatory=False, dynamic=False)
