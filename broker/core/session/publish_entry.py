"""What one basic.publish payload comes to, before anything of the message itself is looked at (street step 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.amqp.codec import publish_fields
from broker.amqp.errors import ChannelError, ConnectionFault
from broker.core.message import Envelope
from broker.core.reply_to import REPLY_PREFIX

if TYPE_CHECKING:
    from broker.core.queue import Queue
    from broker.core.session.connection import SessionOfConnection
    from broker.core.stream import Stream
    from broker.core.vhost import Vhost
    from broker.routing.cache import Route
    from broker.routing.exchange import Exchange

__all__ = ["PublishEntry", "resolve_publish"]


class PublishEntry:
    """What one basic.publish payload comes to: rights checked, route resolved, prepared bytes.

    Shapes: ``streams`` are those of the route's queues, ``durable`` and ``transient`` split them by who needs a record;
        they are of use on the straight road only.
    Invariant: valid while ``route.live``, and until the vhost drops its publish caches. ``straight`` says that neither
        the exchange nor any of the queues has to look at the message: all of them are plain, and there is at least one.
    """

    __slots__ = (
        "durable",
        "dynamic",
        "envelope",
        "exchange",
        "mandatory",
        "queues",
        "route",
        "straight",
        "streams",
        "transient",
    )

    def __init__(
        self, envelope: Envelope, exchange: Exchange, route: Route, *, mandatory: bool, dynamic: bool, straight: bool
    ) -> None:
        self.envelope = envelope
        self.exchange = exchange
        self.route = route
        self.mandatory = mandatory
        self.dynamic = dynamic  # the headers decide too: each message is routed by itself
        queues: tuple[Queue, ...] = route.destinations
        self.queues = queues
        self.straight = straight and not dynamic and bool(queues) and all(queue.plain for queue in queues)
        streams: tuple[Stream, ...] = tuple(queue.stream for queue in queues)
        durable = tuple(stream for stream in streams if stream.durable)
        self.streams = streams
        self.durable = streams if len(durable) == len(streams) else durable  # mostly they are the same
        self.transient = tuple(stream for stream in streams if not stream.durable) if durable else streams

    @property
    def lasting(self) -> bool:
        """Whether the next publish with the same payload may use it: who waits for answers changes without a route."""
        return self.exchange.name != "" or not self.envelope.key.startswith(REPLY_PREFIX)


def resolve_publish(session: SessionOfConnection, vhost: Vhost, payload: bytes) -> PublishEntry:
    """Returns what a basic.publish payload comes to for this user.

    Raises: ChannelError 403, 404; ConnectionFault 501, 502, 540.
    """
    exchange_name, key, mandatory, immediate = publish_fields(payload)
    if immediate:
        raise ConnectionFault(540, "immediate=true")
    resource = vhost.exchange_resource(exchange_name)
    session.check(resource, "write")
    exchange = vhost.exchange(exchange_name)
    if exchange.internal:
        raise ChannelError(403, f"cannot publish to internal {resource}")
    if exchange.type == "topic":
        session.check_topic(resource, key, "write")
    router = vhost.router
    return PublishEntry(
        Envelope(exchange_name, key),
        exchange,
        router.route(exchange, key),
        mandatory=mandatory,
        dynamic=router.dynamic(exchange),
        straight=not exchange.delayed,
    )
