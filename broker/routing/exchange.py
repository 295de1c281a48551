"""Exchanges: their bindings, and where they lead a message."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, ClassVar

from broker.routing.binding import Binding, make_binding
from broker.routing.cache import CacheLimits, Route, RouteCache
from broker.routing.destinations import Destinations, count_down, count_up
from broker.routing.headers import HeadersPredicate, freeze_headers
from broker.routing.index import TopicIndex
from broker.routing.pattern import Pattern, PatternLimits, parse_pattern


class Exchange(ABC):
    """An exchange of one vhost: a set of bindings, and the routes they make.

    Subclasses keep the bindings in the structure that answers best, and clear `live` of the routes a change touches.
    """

    type: ClassVar[str]
    by_headers: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments: Mapping[str, Any] = arguments or {}
        self.had_bindings = False
        self._bindings: dict[Binding, Binding] = {}

    def __repr__(self) -> str:
        return f"<{self.type} exchange {self.name!r} bindings={len(self._bindings)}>"

    @property
    def bindings(self) -> Collection[Binding]:
        """Return the bindings in the order in which they were made; copy it before changing them."""
        return self._bindings.keys()

    def bind(self, destination: Hashable, key: str, arguments: Mapping[str, Any]) -> Binding | None:
        """Return the new binding, or None if an equal one was there.

        Raises: BindingKeyError or BindingArgumentError (both ValueError), with nothing changed; the caller's 406.
        """
        binding = make_binding(self.name, destination, key, arguments)
        if binding in self._bindings:
            return None
        self._attach(binding)
        self._bindings[binding] = binding
        self.had_bindings = True
        return binding

    def unbind(self, destination: Hashable, key: str, arguments: Mapping[str, Any]) -> Binding | None:
        """Return the binding that was removed, or None if there was none."""
        binding = self._bindings.pop(make_binding(self.name, destination, key, arguments), None)
        if binding is not None:
            self._detach(binding)
        return binding

    def remove(self, binding: Binding) -> None:
        """Remove a binding that a destination knows. Raises: KeyError. Cost: its key, not the other bindings."""
        self._detach(self._bindings.pop(binding))

    def remove_all(self) -> list[Binding]:
        """Remove every binding and return them, for the destinations to forget; no route stays live.

        This is how an exchange is deleted: whoever kept a route, even one that led nowhere, must ask for the name.
        """
        removed = list(self._bindings)
        for binding in removed:
            self.remove(binding)
        self._drop_routes()
        return removed

    @abstractmethod
    def route(self, key: str) -> Route:
        """Return the route of a message by its routing key."""

    def match_headers(self, headers: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the destinations of a message by its headers; only a headers exchange has an answer."""
        raise TypeError(f"a {self.type} exchange does not route by headers")

    @abstractmethod
    def _attach(self, binding: Binding) -> None: ...

    @abstractmethod
    def _detach(self, binding: Binding) -> None: ...

    @abstractmethod
    def _drop_routes(self) -> None: ...


class KeyedExchange(Exchange):
    """An exchange that looks at the routing key, with a cache of the routes in use."""

    def __init__(self, name: str, *, cache_limits: CacheLimits | None = None, **settings: Any) -> None:
        super().__init__(name, **settings)
        self.cache = RouteCache(cache_limits)

    def route(self, key: str) -> Route:
        """Return the route of a message. Cost: one look-up if it is cached."""
        route = self.cache.entries.get(key)
        if route is not None:
            self.cache.hits += 1
            return route
        return self.cache.offer(key, self._resolve(key))

    def _drop_routes(self) -> None:
        self.cache.drop_all()

    @abstractmethod
    def _resolve(self, key: str) -> tuple[Any, ...]: ...


class DirectExchange(KeyedExchange):
    """Leads a message to the destinations bound with exactly its routing key."""

    type = "direct"

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(name, **settings)
        self._keys: dict[str, Destinations] = {}

    def _attach(self, binding: Binding) -> None:
        if count_up(self._keys.setdefault(binding.key, {}), binding.destination):
            self.cache.drop(binding.key)

    def _detach(self, binding: Binding) -> None:
        destinations = self._keys[binding.key]
        if count_down(destinations, binding.destination):
            self.cache.drop(binding.key)
            if not destinations:
                del self._keys[binding.key]

    def _resolve(self, key: str) -> tuple[Any, ...]:
        return tuple(self._keys.get(key, ()))


class DefaultExchange(KeyedExchange):
    """Leads a message to the queue that its routing key names; no binding is ever made or removed."""

    type = "direct"

    def __init__(self, lookup: Callable[[str], Any | None], *, cache_limits: CacheLimits | None = None) -> None:
        super().__init__("", durable=True, cache_limits=cache_limits)
        self._lookup = lookup

    def touch(self, queue_name: str) -> None:
        """Invalidate the route of a queue that has just been declared or deleted."""
        self.cache.drop(queue_name)

    def _attach(self, binding: Binding) -> None:
        raise TypeError("the default exchange has implicit bindings only")

    _detach = _attach

    def _resolve(self, key: str) -> tuple[Any, ...]:
        queue = self._lookup(key)
        return () if queue is None else (queue,)


class TopicExchange(KeyedExchange):
    """Leads a message to the destinations bound with a pattern that matches its routing key."""

    type = "topic"

    def __init__(self, name: str, *, pattern_limits: PatternLimits | None = None, **settings: Any) -> None:
        super().__init__(name, **settings)
        self._index = TopicIndex(limits=pattern_limits)

    def _attach(self, binding: Binding) -> None:
        pattern = self._index.parse(binding.key)
        if self._index.add(pattern, binding.destination):
            self._invalidate(pattern)

    def _detach(self, binding: Binding) -> None:
        pattern = parse_pattern(binding.key)
        if self._index.remove(pattern, binding.destination):
            self._invalidate(pattern)

    def _resolve(self, key: str) -> tuple[Any, ...]:
        return self._index.match(key)

    def _invalidate(self, pattern: Pattern) -> None:
        if pattern.literal:
            self.cache.drop(pattern.text)
        else:
            self.cache.drop_all()


class FanoutExchange(Exchange):
    """Leads every message to all destinations: one route, whatever the key."""

    type = "fanout"

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(name, **settings)
        self._destinations: Destinations = {}
        self._route: Route | None = None

    def route(self, key: str) -> Route:
        """Return the one route."""
        if self._route is None:
            self._route = Route(tuple(self._destinations), live=True)
        return self._route

    def _attach(self, binding: Binding) -> None:
        if count_up(self._destinations, binding.destination):
            self._drop_routes()

    def _detach(self, binding: Binding) -> None:
        if count_down(self._destinations, binding.destination):
            self._drop_routes()

    def _drop_routes(self) -> None:
        if self._route is not None:
            self._route.live = False
            self._route = None


class HeadersExchange(Exchange):
    """Leads a message to the destinations whose binding arguments its headers satisfy."""

    type = "headers"
    by_headers = True

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(name, **settings)
        self._predicates: dict[Binding, HeadersPredicate] = {}
        self._route = Route((), live=True)

    def route(self, key: str) -> Route:
        """Return a route that leads nowhere and is live as long as the exchange: each message asks match_headers."""
        return self._route

    def match_headers(self, headers: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the destinations of a message by its headers. Cost: all bindings, as in RabbitMQ."""
        frozen = freeze_headers(headers)
        matched: dict[Any, None] = {}
        for binding, predicate in self._predicates.items():
            if binding.destination not in matched and predicate.matches(frozen):
                matched[binding.destination] = None
        return tuple(matched)

    def _attach(self, binding: Binding) -> None:
        self._predicates[binding] = HeadersPredicate(binding.arguments)

    def _detach(self, binding: Binding) -> None:
        del self._predicates[binding]

    def _drop_routes(self) -> None:
        self._route.live = False
        self._route = Route((), live=True)


EXCHANGE_TYPES: dict[str, type[Exchange]] = {
    kind.type: kind for kind in (DirectExchange, FanoutExchange, TopicExchange, HeadersExchange)
}


def make_exchange(
    name: str,
    type: str,
    *,
    durable: bool = False,
    auto_delete: bool = False,
    internal: bool = False,
    arguments: Mapping[str, Any] | None = None,
    cache_limits: CacheLimits | None = None,
    pattern_limits: PatternLimits | None = None,
) -> Exchange:
    """Return a new exchange; limits are for the types that they concern.

    Raises: ValueError on a type that is not known; the caller's 503.
    """
    kind = EXCHANGE_TYPES.get(type)
    if kind is None:
        raise ValueError(f"unknown exchange type '{type}'")
    settings: dict[str, Any] = {}
    if issubclass(kind, KeyedExchange):
        settings["cache_limits"] = cache_limits
    if issubclass(kind, TopicExchange):
        settings["pattern_limits"] = pattern_limits
    return kind(name, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments, **settings)
