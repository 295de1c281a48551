"""What the exchange's name in a basic.publish comes to by itself, whatever the routing key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.amqp.errors import ChannelError
from broker.core.message.message import Envelope
from broker.core.session.publish_entry import PublishEntry
from broker.routing.route import Route

if TYPE_CHECKING:
    from broker.core.resource import Resource
    from broker.core.session.connection import SessionOfConnection
    from broker.core.vhost import Vhost
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

    def __init__(self, session: SessionOfConnection, vhost: Vhost, name: str) -> None:
        """Look up the exchange and the rights to it. Raises: ChannelError 403, 404."""
        resource = vhost.exchange_resource(name)
        session.check(resource, "write")
        exchange: Exchange = vhost.exchange(name)
        if exchange.internal:
            raise ChannelError(403, f"cannot publish to internal {resource}")
        self.resource: Resource = resource
        self.exchange = exchange
        self.standing = exchange.standing
        self.named = name != ""
        self.narrowed = exchange.type == "topic" and session.narrows_topics(resource)
        self.plain = (
            exchange.alternate is None and not exchange.onward and not exchange.by_headers and not vhost.firehose.active
        )
        self.nowhere = PublishEntry(Envelope(name, ""), exchange, Route(()), mandatory=False, dynamic=False)
