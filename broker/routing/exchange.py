"""The base of exchanges: their bindings, listeners and routes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol

from broker.routing.bundle import Arguments, Binding, Bundle, Destination, binding_identity
from broker.routing.cache import CacheLimits
from broker.routing.listeners import NO_LISTENERS, Listeners
from broker.routing.pattern import AMQP, Pattern, PatternLimits, TopicDialect, parse_pattern
from broker.routing.route import Route
from broker.routing.route_cache import RouteCache


class ExchangeTally:
    """Counts of the messages that clients published to one exchange, and of their copies in queues.

    Invariant: both numbers only grow.
    """

    __slots__ = ("publish_in", "publish_out")

    def __init__(self) -> None:
        self.publish_in = 0
        self.publish_out = 0

    def count(self, count: int, queues: int) -> None:
        """Count messages, each of which was routed to this many queues."""
        self.publish_in += count
        self.publish_out += count * queues


NO_ARGUMENTS: Final[Mapping[str, Any]] = MappingProxyType({})
"""The shared argument table of exchanges and bindings without arguments."""

PATTERNS_AT_ONCE: Final = 64
"""If more patterns of an outlet change at once, all routes end, instead of only those that the patterns match."""


class MessageFields(Protocol):
    """The properties of one message, as exchanges read them."""

    @property
    def headers(self) -> Mapping[str, Any]:
        """The decoded header table; empty if there is none."""

    def property(self, name: str) -> str | None:
        """Return message_id, correlation_id or timestamp (seconds since 1970, as decimal digits), or None if absent."""


@dataclass(frozen=True, slots=True)
class ExchangeProperties:
    """The properties of an exchange other than its name and type."""

    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, Any] | None = None


BARE: Final = ExchangeProperties()


class Exchange(Destination["Exchange"]):
    """An exchange of one vhost: a set of bindings, and the resulting routes.

    Subclasses keep the bindings in a suitable index, and end the routes that a change affects. A destination may itself
    be an exchange, which the router follows.

    Shapes: `alternate` is the name of the alternate exchange, initially that in the arguments.
    Invariant: `bundles` maps every bound destination to its bindings, and `onward` contains the destinations that are
        exchanges. `binding_count` is the number of bindings.
    """

    type: str
    by_headers: bool = False
    """Whether routing depends on more than the routing key of a message."""
    delayed: bool = False
    """Whether messages with x-delay are delayed by this exchange; routing itself does not depend on time."""
    dialect: TopicDialect = AMQP
    """The dialect of the binding keys."""
    chooses: bool = False
    """Whether each message is routed to only one of the destinations."""
    by_topic: bool = False
    """Whether binding keys are patterns of routing keys, so that topic permissions apply."""

    index_name: str | None = None
    """The name of the engine that finds wildcard patterns; only a topic exchange has one."""
    kind_of_patterns: str = ""
    """`topic` or `direct` if binding keys are converted to AMQP patterns by the rules of that type; empty otherwise."""

    def __init__(self, name: str, properties: ExchangeProperties = BARE) -> None:
        super().__init__()
        self.name = name
        self.durable = properties.durable
        self.auto_delete = properties.auto_delete
        self.internal = properties.internal
        self.arguments: Mapping[str, Any] = properties.arguments or NO_ARGUMENTS
        self.deleted = False
        self.tally = ExchangeTally()
        self.bundles: dict[Hashable, Bundle[Exchange]] = {}
        self.binding_count = 0
        self.onward: dict[Exchange, None] = {}
        self.listeners = NO_LISTENERS
        self._unrouted: dict[Hashable, None] = {}  # deleted destinations whose keys are still in the index
        alternate = self.arguments.get("alternate-exchange")
        self.alternate: str | None = alternate if isinstance(alternate, str) else None
        self._standing: Route | None = None

    def __repr__(self) -> str:
        return f"<{self.type} exchange {self.name!r} bindings={self.binding_count}>"

    def become_delayed(self, type: str) -> None:
        """Change the type to one that delays messages with x-delay and routes as before."""
        self.type = type
        self.delayed = True

    @property
    def bindings(self) -> Iterator[Binding]:
        """Yield the bindings by destination, in the order in which they were created."""
        for bundle in self.bundles.values():
            yield from bundle

    def set_alternate(self, name: str | None) -> bool:
        """Set the name of the alternate exchange, or None for none, and return whether it has changed."""
        if name == self.alternate:
            return False
        self.alternate = name
        self._end_standing()
        self._drop_routes()
        return True

    @property
    def standing(self) -> Route:
        """A route without destinations, which ends when the exchange is deleted, or when its alternate or the set of
        exchanges in `onward` changes. Callers that must match each message keep it to detect such changes.
        """
        if self._standing is None:
            self._standing = Route((), live=True)
        return self._standing

    def bind(self, destination: Hashable, key: str, arguments: Arguments, limits: PatternLimits | None = None) -> bool:
        """Add a binding and return whether it is new. `limits` apply to a new binding; None, for a restored one, means
        the exchange's limits. Cost: its key and the cached routes that end, not the other bindings.
        Raises: BindingKeyError or BindingArgumentError (both ValueError), with nothing changed.
        """
        identity = binding_identity(key, arguments)
        bundle = self.bundles.get(destination)
        if bundle is not None and identity in bundle:
            return False
        self._attach(destination, key, arguments, limits)
        if bundle is None:
            bundle = self._tie(destination)
        bundle.put(identity, arguments or NO_ARGUMENTS)
        self.binding_count += 1
        return True

    def is_bound(self, destination: Hashable, key: str, arguments: Arguments) -> bool:
        """Return whether the binding exists."""
        bundle = self.bundles.get(destination)
        return bundle is not None and binding_identity(key, arguments) in bundle

    def bound_with(self, destination: Hashable, key: str, arguments: Arguments) -> Mapping[str, Any] | None:
        """Return the arguments of a binding, or None if there is no such binding."""
        bundle = self.bundles.get(destination)
        return None if bundle is None else bundle.get(binding_identity(key, arguments))

    def unbind(self, destination: Hashable, key: str, arguments: Arguments) -> Mapping[str, Any] | None:
        """Remove a binding and return the arguments with which it was created, or None if there was no such binding.

        Cost: its key and the cached routes that end, not the other bindings.
        """
        bundle = self.bundles.get(destination)
        removed = None if bundle is None else bundle.take(binding_identity(key, arguments))
        if bundle is None or removed is None:
            return None
        self.binding_count -= 1
        self._detach(destination, key, removed)
        if not bundle:
            self._untie(bundle)
        return removed

    # -- deletion -----------------------------------------------------------------------------------------------------

    def remove_bundle(self, bundle: Bundle[Exchange]) -> None:
        """Remove all bindings of a bundle, and end the routes that they affect. Cost: their keys and the routes."""
        self._untie(bundle)
        self.binding_count -= len(bundle)
        while bundle:
            self._detach(bundle.destination, *bundle.pop())

    def stop_routing_to(self, bundle: Bundle[Exchange]) -> None:
        """Stop routing to a destination that is being deleted.

        Its keys stay in the index until `remove_keys` is called. Cost: at most a scan of all cached routes.
        """
        self._untie(bundle)
        self.binding_count -= len(bundle)
        if bundle:
            self._unrouted[bundle.destination] = None
            self._end_routes_to(bundle.destination)

    def remove_keys(self, bundle: Bundle[Exchange], limit: int) -> int:
        """Remove up to `limit` keys of a bundle from the index, and return their number.

        Call `stop_routing_to` with the bundle first, or `end` of this exchange.
        """
        count = min(limit, len(bundle))
        for _ in range(count):
            self._detach(bundle.destination, *bundle.pop())
        if not bundle:
            self._unrouted.pop(bundle.destination, None)
            if self.deleted and isinstance(bundle.destination, Destination):
                bundle.destination.incoming.pop(self, None)
        return count

    def end(self) -> list[Bundle[Exchange]]:
        """End every route because the exchange is being deleted, and return its bundles, which `remove_keys` empties.

        Callers that kept a route must look up the name again. The bindings to this exchange are in `incoming`; the
        caller passes them to `stop_routing_to` of their sources.
        """
        self.deleted = True
        bundles = list(self.bundles.values())
        self.bundles.clear()
        self.onward.clear()
        self.binding_count = 0
        self._end_standing()
        self._drop_routes()
        return bundles

    def _tie(self, destination: Hashable) -> Bundle[Exchange]:
        bundle = self.bundles[destination] = Bundle(self, destination)
        if isinstance(destination, Destination):
            destination.incoming[self] = bundle
            if isinstance(destination, Exchange):
                self.onward[destination] = None
                self._end_standing()
        return bundle

    def _untie(self, bundle: Bundle[Exchange]) -> None:
        destination = bundle.destination
        del self.bundles[destination]
        if isinstance(destination, Destination):
            del destination.incoming[self]
            if isinstance(destination, Exchange):
                del self.onward[destination]
                self._end_standing()

    # -- listeners ----------------------------------------------------------------------------------------------------

    def listen(self, destination: Hashable, pattern: str, limits: PatternLimits | None = None) -> None:
        """Copy messages to a destination if a topic pattern matches their routing keys, whatever the exchange's type.

        A listener is not a binding: it is not counted, and a message that reaches only listeners is unroutable.
        Raises: BindingKeyError, with nothing changed.
        """
        listeners = Listeners(self.dialect) if self.listeners is NO_LISTENERS else self.listeners
        listeners.add(destination, pattern, limits)
        self.listeners = listeners
        self._drop_routes()

    def forget_listener(self, destination: Hashable) -> None:
        self.listeners.remove(destination)
        self._drop_routes()

    def open_outlet(self, outlet: Hashable) -> None:
        """Set the outlet, a destination for messages to forward to other brokers. It is not a binding: it is not
        counted, and must be set again when the exchange is deleted and declared again. Messages that reach only the
        outlet are not unroutable.
        """
        listeners = Listeners(self.dialect) if self.listeners is NO_LISTENERS else self.listeners
        listeners.set_outlet(outlet)
        self.listeners = listeners
        self._drop_routes()

    def forward(self, added: Iterable[str], removed: Iterable[str] = ()) -> None:
        """Change the patterns of the messages that the outlet gets. Cost: the patterns, and the routes that they match.

        Raises: BindingKeyError for an invalid pattern, KeyError for the removal of a missing one.
        """
        listeners = self.listeners
        patterns = [*added]
        for pattern in patterns:
            listeners.add_outlet_pattern(pattern)
        for pattern in removed:
            listeners.remove_outlet_pattern(pattern)
            patterns.append(pattern)
        if len(patterns) > PATTERNS_AT_ONCE or self.dialect is not AMQP:
            self._drop_routes()
        else:
            for pattern in patterns:
                self._end_routes_of(parse_pattern(pattern))

    def is_routed(self, destinations: Sequence[Any]) -> bool:
        """Return whether any of the destinations is not a listener."""
        if not self.listeners.patterns:
            return bool(destinations)
        patterns = self.listeners.patterns
        return any(destination not in patterns for destination in destinations)

    def matches(self, key: str, arguments: Arguments, keys: Sequence[str], fields: MessageFields) -> bool:
        """Return whether one binding, by its key and arguments, may route a message to its destination.

        The answer is also True if that depends on other bindings. Cost: independent of the number of bindings.
        """
        return True

    def forget_misses(self) -> None:
        """Discard the misses that the route cache has recorded, if there is one."""

    @abstractmethod
    def route(self, key: str) -> Route:
        """Return the route of a message by its routing key, or the standing route if each message must be matched.

        Shapes: destinations may be exchanges.
        """

    def match(self, keys: Sequence[str], fields: MessageFields) -> tuple[Any, ...]:
        """Return the destinations of one message by its routing keys and its fields.

        Shapes: `keys` are the routing key, then the keys of CC and BCC.
        """
        if len(keys) == 1:
            return self.route(keys[0]).destinations
        return tuple(dict.fromkeys(destination for key in keys for destination in self.route(key).destinations))

    def match_headers(self, headers: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the destinations of a message by its headers. Raises: TypeError unless this is a headers exchange."""
        raise TypeError(f"a {self.type} exchange does not route by headers")

    def _end_standing(self) -> None:
        if self._standing is not None:
            self._standing.end()
            self._standing = None

    @abstractmethod
    def _attach(self, destination: Hashable, key: str, arguments: Arguments, limits: PatternLimits | None) -> None: ...

    @abstractmethod
    def _detach(self, destination: Hashable, key: str, arguments: Arguments) -> None: ...

    def _end_routes_to(self, destination: Hashable) -> None:
        """End the routes to a destination, and perhaps others."""
        self._drop_routes()

    @abstractmethod
    def _drop_routes(self) -> None: ...

    def _end_routes_of(self, pattern: Pattern) -> None:
        """End the routes of the keys that a pattern matches, and perhaps others."""
        self._drop_routes()


class KeyedExchange(Exchange):
    """An exchange that routes by the routing key, with a cache of the routes in use."""

    def __init__(
        self, name: str, properties: ExchangeProperties = BARE, cache_limits: CacheLimits | None = None
    ) -> None:
        super().__init__(name, properties)
        self.cache = RouteCache(cache_limits)

    def forget_misses(self) -> None:
        self.cache.forget_misses()

    def route(self, key: str) -> Route:
        """Return the route of a message. Cost: one look-up if it is cached."""
        cache = self.cache
        route = cache.entries.get(key)
        if route is not None and route.live:
            return route
        destinations = self._resolve(key)
        if self._unrouted:
            destinations = tuple([found for found in destinations if found not in self._unrouted])
        if self.listeners.present:
            destinations += self.listeners.match((key,))
        return cache.offer(key, destinations)

    def _end_routes_to(self, destination: Hashable) -> None:
        self.cache.drop_routes_to(destination)

    def _drop_routes(self) -> None:
        self.cache.drop_all()

    def _end_routes_of(self, pattern: Pattern) -> None:
        if pattern.literal:
            self.cache.drop(pattern.text)
        else:
            self.cache.end_matching(pattern.words, self.dialect.words)

    @abstractmethod
    def _resolve(self, key: str) -> tuple[Any, ...]: ...
