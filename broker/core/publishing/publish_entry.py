"""The exchange and the resolved route of a basic.publish payload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.amqp.header_facts import NO_PRIORITY
from broker.core.message.message import Envelope
from broker.core.names import Resource
from broker.core.publishing.message_store import Targets
from broker.core.queue.level import Level
from broker.core.queue.queue import Queue
from broker.routing.cache import ResolvedPublish
from broker.routing.exchange import Exchange, ExchangeTally
from broker.routing.route import Route

PRIORITIES_KEPT: Final = 4  # priorities whose routes an entry caches
WIDE_QUEUES: Final = 1000  # a publish to at least this many queues enters them over several turns


class PublishTarget(ResolvedPublish):
    """An exchange to which a user may publish: it exists, is not internal, and the user has the right to write to it.

    ``narrowed`` is set if rights to the routing key must be checked too, ``plain`` if the queues depend only on the
    exchange's own bindings and the routing key. ``nowhere`` is the entry of publishes that are dropped.
    Invariant: valid while ``route.live`` is set, and until the vhost drops its publish caches.
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


class PublishEntry(Targets):
    """The resolved route of one basic.publish payload: exchange, rights and, unless it is `dynamic`, target queues.

    `straight` is set if the messages need no further checks: their queues are plain and fewer than WIDE_QUEUES. Then
    the levels and `reach` are those of messages without a priority; if `strict` is set too, `at_priority` returns the
    entry of other messages. `nowhere` is set if all messages are dropped: they reach no queue, and are neither replies
    nor returned.
    Units: `reach` is the number of queues that get each message, without those of taps.
    Invariant: valid while `route.live` is set, and until the vhost drops its publish caches.
    """

    __slots__ = ("_at_priority", "dynamic", "envelope", "exchange", "mandatory", "nowhere", "queues", "reach",
                 "straight", "strict", "tally")  # fmt: skip

    def __init__(
        self,
        envelope: Envelope,
        exchange: Exchange,
        route: Route,
        *,
        mandatory: bool,
        dynamic: bool,
        traced: bool = False,
        priority: int = NO_PRIORITY,
    ) -> None:
        queues: tuple[Queue, ...] = route.destinations
        straight = not (exchange.delayed or dynamic or traced) and 0 < len(queues) < WIDE_QUEUES
        strict = False
        reach = 0
        levels: list[Level] = []
        if straight:
            for queue in queues:
                if not queue.plain:
                    straight = False
                    break
                if queue.strict:
                    strict = True
                levels.append(queue.level_at(priority) if queue.strict and priority >= 0 else queue.level)
                if not queue.is_tap:
                    reach += 1
            if not straight or (mandatory and not reach):
                straight = False
                levels, reach = [], 0
        super().__init__(tuple(levels), route)
        self.envelope = envelope
        self.exchange = exchange
        self.mandatory = mandatory
        self.dynamic = dynamic  # the route depends on the headers, so each message is routed separately
        self.queues = queues
        self.reach = reach
        self.tally: ExchangeTally = exchange.tally
        # Publishes to the default exchange may reach a reply consumer.
        self.nowhere = not queues and not mandatory and not dynamic and envelope.exchange != "" and not traced
        self.straight = straight
        self.strict = strict and priority < 0
        self._at_priority: dict[int, PublishEntry] | None = None

    def at_priority(self, priority: int) -> PublishEntry:
        """Return the entry of messages with a priority. Invariant: this entry is `straight` and `strict`."""
        known = self._at_priority
        if known is None:
            known = self._at_priority = {}
        entry = known.get(priority)
        if entry is None:
            if len(known) >= PRIORITIES_KEPT:
                known.clear()
            entry = known[priority] = PublishEntry(
                self.envelope, self.exchange, self.route, mandatory=self.mandatory, dynamic=False, priority=priority
            )
        return entry


def reach_of(queues: Sequence[Queue]) -> int:
    """Return the number of queues, without those of taps."""
    return len([queue for queue in queues if not queue.is_tap])
