"""The fast path of publishing on one channel: resolve the route, and pass runs of messages to the store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from broker.amqp.channel import Channel
from broker.amqp.codec import publish_fields
from broker.amqp.connection import Connection
from broker.amqp.errors import ChannelError, ConnectionFault
from broker.amqp.framing import PUBLISH
from broker.core.message.message import OVERHEAD_BYTES, Envelope, Message
from broker.core.publishing.message_store import MessageStore, Targets
from broker.core.publishing.publish_entry import WIDE_QUEUES, PublishEntry, PublishTarget
from broker.core.publishing.reply_to import REPLY_PREFIX
from broker.core.session.channel_confirms import ChannelConfirms
from broker.core.session.class_session import ClassSession
from broker.core.session.client import SessionClient
from broker.core.session.detailed_publisher import DetailedPublisher
from broker.core.session.publication import Publication, republish
from broker.core.statistics.publish_tally import ChannelPublishes
from broker.core.vhost import Vhost

_MANDATORY: Final = 1
_IMMEDIATE: Final = 2
MakeConfirms = Callable[[Channel, Connection, Vhost, ChannelPublishes], ChannelConfirms]

QUEUES_PER_UNIT: Final = 8  # queues of a resolved route for one unit of the method budget


class Resolver(ClassSession):
    """Look up rights, exchange and route of a publish, and cache them per user, or per client for an MQTT client whose
    rights depend on its id.

    Shapes: `entries` maps payloads to their entries; it is empty before the channel's first publish, and after
        `forget`.
    """

    __slots__ = ("_cache", "entries")

    def __init__(self, channel: Channel, session: SessionClient, vhost: Vhost) -> None:
        super().__init__(channel, session, vhost)
        self._cache = vhost.publish_caches.of(session.known_user.name)
        self.entries: dict[bytes, PublishEntry] = {}

    def resolve(self, payload: bytes) -> PublishEntry:
        """Resolve a basic.publish payload that is not cached, or whose cached route is no longer live.

        While the vhost refuses publishes, return the entry `nothing` of the caches, unless the client is patient.
        Raises: ChannelError 403, 404; ConnectionFault 501, 502, 540.
        """
        if self.entries is not self._cache.entries:
            # The first publish of the channel, or since `forget`: from now on, an alarm blocks this connection.
            self._session.publishes()
            if self._session.client_key:
                self._choose_cache(payload)
            self.entries = self._cache.entries
            known = self.entries.get(payload)
            if known is not None and known.route.live:
                return known
        cache = self._cache
        try:
            at = 7 + payload[6]  # the position of the routing key; the flags are after it
            target = cache.exchanges.get(payload[6:at])
            if (
                target is None
                or not target.route.live
                or at + payload[at] + 2 != len(payload)
                or payload[-1] & _IMMEDIATE
            ):
                target = self._enter(payload)
            key = payload[at + 1 : -1].decode()
        except (IndexError, UnicodeDecodeError):
            publish_fields(payload)  # raises the error
            raise
        if target.narrowed:
            self._session.check_topic(target.resource, key, "write")
        if self._vhost.refusal and not self._session.patient:
            return self._vhost.publish_caches.nothing
        return self._find(payload, target, key)

    def forget(self) -> None:
        """Forget the resolved publishes, because rights have changed or the channel has ended."""
        caches = self._vhost.publish_caches
        if caches.release(self._cache):
            self._cache = caches.of(self._session.known_user.name)
        self.entries = {}

    def _choose_cache(self, payload: bytes) -> None:
        """Use a separate cache for the client if its rights to the exchange depend on its client id."""
        session, caches = self._session, self._vhost.publish_caches
        exchange = self._vhost.exchange_resource(payload[7 : 7 + payload[6]].decode())
        if session.has_own_rights(exchange) and self._cache is caches.of(session.known_user.name):
            self._cache = caches.own()

    def _find(self, payload: bytes, target: PublishTarget, key: str) -> PublishEntry:
        """Return the entry of a permitted publish. Publishes that reach no queue may share an entry."""
        exchange = target.exchange
        mandatory = payload[-1] & _MANDATORY == _MANDATORY
        dynamic = False
        if target.plain:
            route = exchange.route(key)
            if not (route.destinations or route.live or mandatory or self._channel.facts.special) and target.named:
                return target.nowhere
        else:
            router = self._vhost.router
            dynamic = router.dynamic(exchange)
            route = router.route(exchange, key)
        envelope = Envelope(exchange.name, key, payload[6:-1])
        if self._vhost.sweep.pending:
            self._vhost.sweep.update_rules(route.destinations)
        traced = self._vhost.firehose.active
        entry = PublishEntry(envelope, exchange, route, mandatory=mandatory, dynamic=dynamic, traced=traced)
        if target.named or not key.startswith(REPLY_PREFIX):  # a change of reply consumers does not end a route
            self._cache.offer(payload, entry)
        return entry

    def _enter(self, payload: bytes) -> PublishTarget:
        """Look up the exchange of a publish, check the rights to it, and cache it.

        Raises: ChannelError 403, 404; ConnectionFault 501, 502, 540.
        """
        name, _key, _mandatory, immediate = publish_fields(payload)
        if immediate:
            raise ConnectionFault(540, "immediate=true")
        session, vhost = self._session, self._vhost
        resource = vhost.exchange_resource(name)
        session.check(resource, "write")
        exchange = vhost.exchanges.find(name)
        if exchange.internal:
            raise ChannelError(403, f"cannot publish to internal {resource}")
        narrowed = exchange.by_topic and session.narrows_topics(resource)
        target = PublishTarget(resource, exchange, narrowed=narrowed, traced=vhost.firehose.active)
        self._cache.add_exchange(payload[6 : 7 + payload[6]], target)
        return target


class Publisher(Resolver):
    """Publish for one channel: runs of plain messages on the fast path, all others with a detailed check."""

    __slots__ = ("_clock", "_connection", "_deadlines", "_detailed", "_number", "_numbers", "_share", "_store",
                 "confirms", "tally", "wide")  # fmt: skip

    def __init__(
        self, channel: Channel, session: SessionClient, vhost: Vhost, confirms: MakeConfirms = ChannelConfirms
    ) -> None:
        super().__init__(channel, session, vhost)
        self._number = channel.number
        self._connection = session.connection
        self._share = session.publish_share
        self._clock = vhost.ports.clock
        self._deadlines = vhost.ports.deadlines
        self._store: MessageStore = vhost.store
        self.wide = vhost.wide
        self.tally = ChannelPublishes(vhost.tally.publishes_of(session.connection.protocol), vhost.tally.sizes)
        self.confirms = confirms(channel, session.connection, vhost, self.tally)
        self._numbers = self.confirms if self._store.refuses_later else None
        self._detailed: DetailedPublisher | None = None

    @property
    def detailed(self) -> DetailedPublisher:
        """The publisher of messages that need a detailed check, created at first use."""
        if self._detailed is None:
            channel, session, vhost = self._channel, self._session, self._vhost
            self._detailed = DetailedPublisher(channel, session, vhost, self.confirms, self.tally)
        return self._detailed

    def publish_run(self, payloads: list[bytes], headers: list[bytes], bodies: list[bytes], start: int) -> int:
        """Publish messages with equal properties from index `start` on, and return the index of the first that was not
        published. HOT.

        The store accepts plain messages with one call. The run may end early, for instance after a message that
        needs a detailed check.
        Raises: ChannelError 403, 404, 406; ConnectionFault 501, 502, 540; earlier messages are published.
        """
        facts = self._channel.facts
        if not facts.plain:
            return start
        priority = facts.priority
        persistent = facts.persistent
        numbers = self._numbers
        now_ms = self._clock.now_ms
        entries = self.entries
        share = self._share
        credit = share.credit
        left = share.left if share.serial == credit.serial else share.begin()
        lagged = credit.lagged
        header = b""
        content_bytes = 0
        logged = 0
        place = start
        messages: list[Message] = []
        targets: list[Targets] = []
        stops: list[int] = []
        last: PublishEntry | None = None
        last_payload = b""
        detailed: PublishEntry | None = None
        resolved = False
        try:
            while place < len(payloads):
                payload = payloads[place]
                entry = last if payload == last_payload else entries.get(payload)  # a lookup costs six comparisons
                resolved = False
                if entry is None or not entry.route.live:
                    if not payload.startswith(PUBLISH):
                        break
                    entry = self.resolve(payload)
                    entries = self.entries
                    resolved = True
                if entry.straight:
                    if headers[place] is not header:
                        header = headers[place]
                        content_bytes = len(header) + len(bodies[place])
                    width = len(entry.levels)
                    charge = OVERHEAD_BYTES + content_bytes // width
                    left -= width
                    if entry is not last:
                        if last is not None:
                            stops.append(len(messages))
                        last = entry.at_priority(priority) if priority >= 0 and entry.strict else entry
                        last_payload = payload
                        targets.append(last)
                    messages.append(Message(entry.envelope, header, bodies[place], charge, facts, now_ms))
                    if entry.durable if persistent else entry.persisting:
                        logged = place + 1 - start
                elif entry.nowhere and (numbers is None or not messages):
                    entry.tally.count(1, 0)
                else:  # also an unroutable message, if the store needs consecutive numbers
                    detailed = entry
                    break
                place += 1
                if (resolved and self._pay(entry)) or left <= 0:
                    break
        finally:
            if messages:
                stops.append(len(messages))
                self._store.accept(messages, targets, stops, b"", numbers)
            self.confirms.published_run(headers, bodies, start, place, targets, stops, logged)
            share.left = left  # hot: set directly
            if left <= 0 or credit.lagged != lagged:
                share.end(left, lagged)
        if detailed is not None and not self._connection.held:
            self._publish_detailed(detailed, payloads[place], headers[place], bodies[place], resolved=resolved)
            return place + 1
        return place

    def publish(self, payload: bytes, header: bytes, body: bytes) -> None:
        """Publish one message, with the detailed check if it needs one.

        Raises: ChannelError 403, 404, 406; ConnectionFault 501, 502, 540.
        """
        if not self.publish_run([payload], [header], [body], 0):
            known = self.entries.get(payload)
            resolved = known is None or not known.route.live
            entry = self.resolve(payload) if known is None or resolved else known
            self._publish_detailed(entry, payload, header, body, resolved=resolved)

    def _publish_detailed(
        self, entry: PublishEntry, payload: bytes, header: bytes, body: bytes, *, resolved: bool
    ) -> None:
        """Publish one message with a detailed check; a message for very many queues may have to wait. `resolved` is set
        if the entry was not cached.
        """
        if resolved:
            self._pay(entry)
            if entry is self._vhost.publish_caches.nothing:
                self._refuse(body)
                return
        detailed, mark = self.detailed, self._channel.facts.mark
        again = partial(self.publish, payload, header, body)
        if not detailed.is_producer_ready(mark) and detailed.await_producer(again):
            return
        if len(entry.queues) >= WIDE_QUEUES and self.wide.pending:
            self.wide.when_entered(self._later(again))
        elif len(entry.queues) >= WIDE_QUEUES and resolved:  # the lookup has used up this turn's time
            later = self._later(partial(self._publish_wide, entry, header, body))
            self._deadlines.next_turn(self, later)
        else:
            detailed.publish(entry, header, body)

    def _refuse(self, body: bytes) -> None:
        """Refuse one publish during an alarm, with a nack. Raises: ChannelError 406 on a channel without confirms."""
        if self.confirms.confirming:
            self.confirms.published_one(body)
        self.detailed.refuse_last(self._vhost.refusal)
        if not self.confirms.confirming:
            raise ChannelError(406, self._vhost.refusal)

    def _publish_wide(self, entry: PublishEntry, header: bytes, body: bytes) -> None:
        """Publish to very many queues, after earlier wide publishes have entered all of theirs."""
        if self.wide.pending:
            self.wide.when_entered(self._later(partial(self._publish_wide, entry, header, body)))
        else:
            self.detailed.publish(entry, header, body)

    def _later(self, publish: Callable[[], None]) -> Callable[[], None]:
        """Hold the connection, and return a function that releases it and publishes."""
        self._connection.hold()
        return partial(republish, self._session, self._number, publish)

    def is_unroutable(self, payload: bytes) -> bool:
        """Return whether publishes in a run with this payload reach no queue except of taps. Raises: as `publish`."""
        known = self.entries.get(payload)
        entry = known if known is not None and known.route.live else self.resolve(payload)
        return entry.nowhere or (entry.straight and not entry.reach)

    def examine(self, payload: bytes, header: bytes, body: bytes) -> Publication:
        """Check a publish now, and return it for a later `send`. Raises: as `publish`."""
        entry = self.entries.get(payload)
        if entry is None or not entry.route.live:
            entry = self.resolve(payload)
            self._pay(entry)
            if entry is self._vhost.publish_caches.nothing:
                self._refuse(body)
        return self.detailed.examine(entry, header, body)

    def _pay(self, entry: PublishEntry) -> bool:
        """Count the cost of resolving a publish, and return whether the connection is held."""
        self._session.method_budget.spend(1 + len(entry.queues) // QUEUES_PER_UNIT)
        return self._connection.held
