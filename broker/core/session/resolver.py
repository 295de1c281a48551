"""The resolver: finds the exchange, the rights and the route of a basic.publish payload, for one channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.amqp.codec import publish_fields
from broker.amqp.errors import ChannelError, ConnectionFault
from broker.core.message.message import Envelope
from broker.core.publishing.publish_entry import PublishEntry
from broker.core.publishing.publish_target import PublishTarget
from broker.core.publishing.reply_to import REPLY_PREFIX
from broker.core.session.client import SessionClient
from broker.core.vhost import Vhost

if TYPE_CHECKING:
    from broker.amqp.channel import Channel

__all__ = ["Resolver"]

_MANDATORY: Final = 1
_IMMEDIATE: Final = 2


class Resolver:
    """Looks up rights, exchange and route of a publish, and caches them for the user, or for a client of MQTT.

    Shapes: ``entries`` maps payloads to their entries; empty before the channel's first publish, and `forget`.
    """

    __slots__ = ("_cache", "_channel", "_session", "_vhost", "entries")

    def __init__(self, channel: Channel, session: SessionClient, vhost: Vhost) -> None:
        assert session.user is not None
        self._channel = channel
        self._session = session
        self._vhost = vhost
        self._cache = vhost.publish_caches.of(session.user.name)
        self.entries: dict[bytes, PublishEntry] = {}

    def resolve(self, payload: bytes) -> PublishEntry:
        """Resolve a basic.publish payload that is not cached, or whose route has ended.

        Return the entry `nothing` of the caches while the vhost refuses publishes.
        Raises: ChannelError 403, 404; ConnectionFault 501, 502, 540.
        """
        if self.entries is not self._cache.entries:
            # The channel's first publish: an alarm blocks this connection from now on, even if the entry is cached.
            self._session.publishes()
            if self._session.client_id:
                self._choose_cache(payload)
            self.entries = self._cache.entries
            known = self.entries.get(payload)
            if known is not None and known.route.live:
                return known
        cache = self._cache
        try:
            at = 7 + payload[6]  # after the exchange's name; the rest except the flags is the routing key
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
        """Resolve all publishes again, because rights have changed or the channel has ended."""
        caches, user = self._vhost.publish_caches, self._session.user
        assert user is not None
        if caches.release(self._cache):
            self._cache = caches.of(user.name)
        self.entries = {}

    def _choose_cache(self, payload: bytes) -> None:
        """Take a cache of the client's own, if other clients of its user have other rights to the exchange."""
        session, caches = self._session, self._vhost.publish_caches
        assert session.user is not None
        exchange = self._vhost.exchange_resource(payload[7 : 7 + payload[6]].decode())
        if session.has_own_rights(exchange) and self._cache is caches.of(session.user.name):
            self._cache = caches.own()

    def _find(self, payload: bytes, target: PublishTarget, key: str) -> PublishEntry:
        """Return the route of a publish that the user may make; one that leads nowhere costs little."""
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
        if target.named or not key.startswith(REPLY_PREFIX):  # reply consumers change without a route
            self._cache.offer(payload, entry)
        return entry

    def _enter(self, payload: bytes) -> PublishTarget:
        """Return the exchange of a publish, and cache it.

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
        self._cache.know_exchange(payload[6 : 7 + payload[6]], target)
        return target
