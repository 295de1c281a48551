"""The exchange of a basic.publish, resolved independently of the routing key."""

from __future__ import annotations

from broker.core.message.message import Envelope
from broker.core.publishing.publish_entry import PublishEntry
from broker.core.resource import Resource
from broker.routing.cache import ResolvedPublish
from broker.routing.exchange import Exchange
from broker.routing.route import Route

__all__ = ["PublishTarget"]


class PublishTarget(ResolvedPublish):
    """An exchange that one user may publish to: it exists, is not internal, and the rights were checked.

    ``narrowed`` means that rights to the routing key must be checked too; ``plain`` that the exchange's own bindings
    and the routing key alone decide the queues; ``nowhere`` is the entry of a publish without queues that is not
    returned.
    Invariant: valid while ``route.live``, the standing one of the exchange, and until the vhost drops its publish
        caches.
    """

    __slots__ = ("exchange", "named", "narrowed", "nowhere", "plain", "resource")

    def __init__(self, resource: Resource, exchange: Exchange, *, narrowed: bool, traced: bool) -> None:
        super().__init__(exchange.standing)
        self.resource = resource
        self.exchange = exchange
        self.named = exchange.name != ""
        self.narrowed = narrowed
        self.plain = exchange.alternate is None and not exchange.onward and not exchange.by_headers and not traced
        envelope = Envelope(exchange.name, "")
        self.nowhere = PublishEntry(envelope, exchange, Route(()), mandatory=False, dynamic=False)
