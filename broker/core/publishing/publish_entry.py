"""What one basic.publish payload comes to, before anything of the message itself is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.core.message.message import Envelope
    from broker.core.queue.queue import Queue
    from broker.core.queue.stream import Stream
    from broker.routing.exchange import Exchange
    from broker.routing.route import Route

__all__ = ["WIDE_QUEUES", "PublishEntry"]

WIDE_QUEUES: Final = 1000  # from here on a publish is counted by its queues


class PublishEntry:
    """What one basic.publish payload comes to: rights checked, route resolved, prepared bytes.

    Shapes: ``streams`` are those of the route's queues, ``durable`` and ``transient`` split them by who needs a record
        of a persistent message; ``persisting`` are those of ``durable`` that need one of a transient message too. They
        are of use on the straight road only.
    Invariant: valid while ``route.live``, and until the vhost drops its publish caches. ``straight`` says that neither
        the exchange nor any of the queues has to look at the message: all of them are plain, and there is at least one
        but not very many.
        ``nowhere`` says that there is none and that nobody has to be told of it. Where none but those of taps are, a
        mandatory message is unroutable and takes the slow road. While the vhost is traced neither of the two is set.
    """

    __slots__ = (
        "durable",
        "dynamic",
        "envelope",
        "exchange",
        "mandatory",
        "nowhere",
        "persisting",
        "queues",
        "route",
        "straight",
        "streams",
        "transient",
    )

    def __init__(
        self,
        envelope: Envelope,
        exchange: Exchange,
        route: Route,
        *,
        mandatory: bool,
        dynamic: bool,
        traced: bool = False,
    ) -> None:
        self.envelope = envelope
        self.exchange = exchange
        self.route = route
        self.mandatory = mandatory
        self.dynamic = dynamic  # the headers decide too: each message is routed by itself
        queues: tuple[Queue, ...] = route.destinations
        self.queues = queues
        # Who waits for an answer is asked by the name of the default exchange.
        self.nowhere = not queues and not mandatory and not dynamic and envelope.exchange != "" and not traced
        plain = not exchange.delayed and not dynamic and not traced
        self.straight = plain and 0 < len(queues) < WIDE_QUEUES and all(queue.plain for queue in queues)
        if mandatory and self.straight and all(queue.is_tap for queue in queues):
            self.straight = False
        streams: tuple[Stream, ...] = tuple([queue.stream for queue in queues])
        durable = tuple([stream for stream in streams if stream.durable])
        self.streams = streams
        self.durable = streams if len(durable) == len(streams) else durable  # mostly they are the same
        self.transient = tuple([stream for stream in streams if not stream.durable]) if durable else streams
        self.persisting = tuple([stream for stream in durable if stream.persists_all])
