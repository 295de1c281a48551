"""Exchanges: their bindings, and where they lead a message."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol

from broker.routing.bundle import Arguments, Binding, Bundle, Destination, binding_identity
from broker.routing.cache import CacheLimits
from broker.routing.listeners import NOBODY, Listeners
from broker.routing.pattern import AMQP, Pattern, PatternLimits, TopicDialect, parse_pattern
from broker.routing.route import Route
from broker.routing.route_cache import RouteCache


class ExchangeTally:
    """Count the messages that clients published to one exchange, and the queues that they reached.

    Invariant: both numbers only grow.
    """

    __slots__ = ("publish_in", "publish_out")

    def __init__(self) -> None:
        self.publish_in = 0
        self.publish_out = 0

    def count(self, count: int, queues: int) -> None:
        """Count messages, each of which went to this many queues."""
        self.publish_in += count
        self.publish_out += count * queues


NO_ARGUMENTS: Final[Mapping[str, Any]] = MappingProxyType({})
"""The argument table of all bindings without arguments."""

PATTERNS_AT_ONCE: Final = 64
"""With more changed patterns of an outlet than this, all routes end instead of those that each pattern matches."""


class MessageFields(Protocol):
    """The properties of one message, as exchanges read them."""

    @property
    def headers(self) -> Mapping[str, Any]:
        """The decoded header table; empty if there is none."""

    def property(self, name: str) -> str | None:
        """Return message_id, correlation_id or timestamp (in seconds since 1970, as decimal digits); None if absent."""


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

    Shapes: `alternate` is the name of the alternate exchange; at first the one of the arguments.
    Invariant: `bundles` has each destination to which something is bound, `onward` those of them that are exchanges;
        `binding_count` is the number of bindings.
    """

    type: str
    by_headers: bool = False
    """Whether routing depends on more of a message than its routing key."""
    delayed: bool = False
    """Whether messages with x-delay are delayed here; routing itself does not depend on time."""
    dialect: TopicDialect = AMQP
    """The dialect of the binding keys."""
    chooses: bool = False
    """Whether a message goes to one of the destinations, chosen among all of them."""
    by_topic: bool = False
    """Whether binding keys are patterns of routing keys: topic permissions hold here, delayed or not."""

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
        self.listeners = NOBODY
        self._parted: dict[Hashable, None] = {}  # deleted destinations whose keys are still in the index
        alternate = self.arguments.get("alternate-exchange")
        self.alternate: str | None = alternate if isinstance(alternate, str) else None
        self._standing: Route | None = None

    def __repr__(self) -> str:
        return f"<{self.type} exchange {self.name!r} bindings={self.binding_count}>"

    def become_delayed(self, type: str) -> None:
        """Become an exchange of another type, which delays messages with x-delay and routes as before."""
        self.type = type
        self.delayed = True

    @property
    def bindings(self) -> Iterator[Binding]:
        """Yield the bindings, destination by destination in the order in which they were made."""
        for bundle in self.bundles.values():
            yield from bundle

    @property
    def index_name(self) -> str | None:
        """The engine that finds wildcard patterns; only a topic exchange has one."""
        return None

    @property
    def kind_of_patterns(self) -> str:
        """`topic` or `direct` if only the binding keys determine what they match, else nothing."""
        return ""

    def set_alternate(self, name: str | None) -> bool:
        """Set the alternate exchange, None for none, and return whether it is another one."""
        if name == self.alternate:
            return False
        self.alternate = name
        self._end_standing()
        self._drop_routes()
        return True

    @property
    def standing(self) -> Route:
        """A route that leads nowhere, live while the exchange, its alternate and its onward exchanges stay.

        Callers that must match each message keep it to notice changes.
        """
        if self._standing is None:
            self._standing = Route((), live=True)
        return self._standing

    def bind(self, destination: Hashable, key: str, arguments: Arguments, limits: PatternLimits | None = None) -> bool:
        """Add a binding and return whether it is new. Cost: its key, not the other bindings. The limits apply to new
        bindings; for restored ones, those of the exchange apply.
        Raises: BindingKeyError or BindingArgumentError (both ValueError), with nothing changed; the caller's 406.
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
        """Return whether there is such a binding."""
        bundle = self.bundles.get(destination)
        return bundle is not None and binding_identity(key, arguments) in bundle

    def bound_with(self, destination: Hashable, key: str, arguments: Arguments) -> Mapping[str, Any] | None:
        """Return the arguments of a binding, None if there is no such binding."""
        bundle = self.bundles.get(destination)
        return None if bundle is None else bundle.get(binding_identity(key, arguments))

    def unbind(self, destination: Hashable, key: str, arguments: Arguments) -> Mapping[str, Any] | None:
        """Remove a binding and return the arguments with which it was made, None if there was none.

        Cost: its key, not the other bindings.
        """
        bundle = self.bundles.get(destination)
        made_with = None if bundle is None else bundle.take(binding_identity(key, arguments))
        if bundle is None or made_with is None:
            return None
        self.binding_count -= 1
        self._detach(destination, key, made_with)
        if not bundle:
            self._untie(bundle)
        return made_with

    # -- deletion -----------------------------------------------------------------------------------------------------

    def sever(self, bundle: Bundle[Exchange]) -> None:
        """Remove a bundle key by key; routes that its keys do not match stay. Cost: its keys."""
        self._untie(bundle)
        self.binding_count -= len(bundle)
        while bundle:
            self._detach(bundle.destination, *bundle.pop())

    def part(self, bundle: Bundle[Exchange]) -> None:
        """Stop routing to a destination that is being deleted.

        Its keys stay in the index until `shed` removes them. Cost: O(1) for each cached route.
        """
        self._untie(bundle)
        self.binding_count -= len(bundle)
        if bundle:
            self._parted[bundle.destination] = None
            self._end_routes_to(bundle.destination)

    def shed(self, bundle: Bundle[Exchange], most: int) -> int:
        """Remove up to this many keys of a bundle from the index, and return how many.

        `part` was called for the destination before, or `end` for this exchange.
        """
        count = min(most, len(bundle))
        for _ in range(count):
            self._detach(bundle.destination, *bundle.pop())
        if not bundle:
            self._parted.pop(bundle.destination, None)
            if self.deleted and isinstance(bundle.destination, Destination):
                bundle.destination.incoming.pop(self, None)
        return count

    def end(self) -> list[Bundle[Exchange]]:
        """End every route because the exchange is being deleted, and return its bundles, which `shed` empties.

        Callers that kept a route must look the name up again. The bindings to this exchange are in `incoming`; the
        caller calls `part` at their sources.
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
        """Copy each message whose key a topic pattern matches to a destination, whatever the type of exchange.

        A listener is not a binding: it is not counted, and a message that reaches only listeners is unroutable.
        Raises: BindingKeyError, with nothing changed.
        """
        listeners = Listeners(self.dialect) if self.listeners is NOBODY else self.listeners
        listeners.add(destination, pattern, limits)
        self.listeners = listeners
        self._drop_routes()

    def forget_listener(self, destination: Hashable) -> None:
        """Remove a listener."""
        self.listeners.remove(destination)
        self._drop_routes()

    def open_outlet(self, outlet: Hashable) -> None:
        """Add an outlet to other brokers, which takes the messages to forward. The outlet is not bound: it is not
        counted, and an exchange that is deleted and declared again needs it again. Messages that it takes are not
        unroutable.
        """
        listeners = Listeners(self.dialect) if self.listeners is NOBODY else self.listeners
        listeners.open(outlet)
        self.listeners = listeners
        self._drop_routes()

    def forward(self, added: Iterable[str], removed: Iterable[str] = ()) -> None:
        """Change the patterns of the messages that the outlet takes. Cost: the patterns, and the routes they match.

        Raises: BindingKeyError for an invalid pattern, KeyError for the removal of a missing one.
        """
        listeners = self.listeners
        patterns = [*added]
        for pattern in patterns:
            listeners.want(pattern)
        for pattern in removed:
            listeners.unwant(pattern)
            patterns.append(pattern)
        if len(patterns) > PATTERNS_AT_ONCE or self.dialect is not AMQP:
            self._drop_routes()
        else:
            for pattern in patterns:
                self._end_routes_of(parse_pattern(pattern))

    def leads(self, destinations: Sequence[Any]) -> bool:
        """Return whether any of the destinations is not a listener."""
        if not self.listeners.patterns:
            return bool(destinations)
        heard = self.listeners.patterns
        return any(destination not in heard for destination in destinations)

    def matches(self, key: str, arguments: Arguments, keys: Sequence[str], fields: MessageFields) -> bool:
        """Return whether one binding, by its key and arguments, may lead a message to its destination.

        True if other bindings matter, too. Cost: that of one comparison, without the index.
        """
        return True

    def forget_misses(self) -> None:
        """Free what only decides whether a cache admits a key."""

    @abstractmethod
    def route(self, key: str) -> Route:
        """Return the route of a message by its routing key; its destinations may be exchanges."""

    def match(self, keys: Sequence[str], fields: MessageFields) -> tuple[Any, ...]:
        """Return the destinations of one message by its keys and its content.

        Shapes: `keys` has the routing key, then those of CC and BCC.
        """
        if len(keys) == 1:
            return self.route(keys[0]).destinations
        return tuple(dict.fromkeys(destination for key in keys for destination in self.route(key).destinations))

    def match_headers(self, headers: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the destinations of a message by its headers; only a headers exchange has any."""
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
        """End the routes that lead to a destination, and perhaps others."""
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
        """Free what only decides whether the cache admits a key."""
        self.cache.forget_misses()

    def route(self, key: str) -> Route:
        """Return the route of a message. Cost: one look-up if it is cached."""
        cache = self.cache
        route = cache.entries.get(key)
        if route is not None and route.live:
            return route
        destinations = self._resolve(key)
        if self._parted:
            destinations = tuple([found for found in destinations if found not in self._parted])
        if self.listeners.present:
            destinations += self.listeners.match((key,))
        return cache.offer(key, destinations)

    def _end_routes_to(self, destination: Hashable) -> None:
        self.cache.drop_those_to(destination)

    def _drop_routes(self) -> None:
        self.cache.drop_all()

    def _end_routes_of(self, pattern: Pattern) -> None:
        if pattern.literal:
            self.cache.drop(pattern.text)
        else:
            self.cache.end_matching(pattern.words, self.dialect.words)

    @abstractmethod
    def _resolve(self, key: str) -> tuple[Any, ...]: ...
