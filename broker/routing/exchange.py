"""Exchanges: their bindings, and where they lead a message."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

from broker.routing.binding import Binding, make_binding
from broker.routing.cache import CacheLimits, RouteCache
from broker.routing.destinations import Destinations, count_down, count_up
from broker.routing.message_fields import MessageFields
from broker.routing.pattern import PatternLimits
from broker.routing.route import Route


class Exchange(ABC):
    """An exchange of one vhost: a set of bindings, and the routes they make.

    Subclasses keep the bindings in the structure that answers best, and end the routes that a change touches. A
    destination may itself be an exchange; what it does with the message is the router's business.

    Invariant: `onward` counts the bindings to each destination that is an exchange, and a binding is in the `incoming`
        of such a destination exactly as long as it is among the `bindings` here.
    """

    type: str
    by_headers: bool = False
    """Whether routing looks at more of a message than its routing key."""
    delayed: bool = False
    """Whether a message with x-delay waits here; routing knows nothing of time."""

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
        self.onward: Destinations = {}
        self.incoming: dict[Binding, Exchange] = {}
        alternate = self.arguments.get("alternate-exchange")
        self._alternate: str | None = alternate if isinstance(alternate, str) else None
        self._bindings: dict[Binding, Binding] = {}
        self._standing: Route | None = None

    def __repr__(self) -> str:
        return f"<{self.type} exchange {self.name!r} bindings={len(self._bindings)}>"

    @property
    def bindings(self) -> Collection[Binding]:
        """Return the bindings in the order in which they were made; copy it before changing them."""
        return self._bindings.keys()

    @property
    def alternate(self) -> str | None:
        """Return the name of the exchange that gets what no binding takes; at first that of the arguments."""
        return self._alternate

    @alternate.setter
    def alternate(self, name: str | None) -> None:
        if name != self._alternate:
            self._alternate = name
            self._end_standing()
            self._drop_routes()

    @property
    def standing(self) -> Route:
        """Return a route that leads nowhere, live while the exchange, its alternate and its onward exchanges stay.

        It is what those hold on to who have to ask for each message.
        """
        if self._standing is None:
            self._standing = Route((), live=True)
        return self._standing

    def check_key(self, key: str, limits: PatternLimits) -> None:  # noqa: B027 most types take any key
        """Check a binding key against limits, which hold for who binds and not for what is stored already.

        Raises: BindingKeyError.
        """

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
        if isinstance(destination, Exchange):
            destination.incoming[binding] = self
            if count_up(self.onward, destination):
                self._end_standing()
        return binding

    def unbind(self, destination: Hashable, key: str, arguments: Mapping[str, Any]) -> Binding | None:
        """Return the binding that was removed, or None if there was none."""
        binding = self._bindings.get(make_binding(self.name, destination, key, arguments))
        if binding is not None:
            self.remove(binding)
        return binding

    def remove(self, binding: Binding) -> None:
        """Remove a binding that a destination knows. Raises: KeyError. Cost: its key, not the other bindings."""
        destination = self._bindings.pop(binding).destination
        self._detach(binding)
        if isinstance(destination, Exchange):
            del destination.incoming[binding]
            if count_down(self.onward, destination):
                self._end_standing()

    def remove_all(self) -> list[Binding]:
        """Remove every binding and return them, for the destinations to forget; no route stays live.

        This is how an exchange is deleted: whoever kept a route, even one that led nowhere, must ask for the name.
        What is bound to lead here is in `incoming`, and is for the caller to remove at its source.
        """
        removed = list(self._bindings)
        for binding in removed:
            self.remove(binding)
        self._end_standing()
        self._drop_routes()
        return removed

    @abstractmethod
    def route(self, key: str) -> Route:
        """Return the route of a message by its routing key; its destinations may be exchanges."""

    def match(self, keys: Sequence[str], fields: MessageFields) -> tuple[Any, ...]:
        """Return the destinations of one message by all there is to know of it.

        Shapes: `keys` are the routing key and those of CC and BCC behind it.
        """
        if len(keys) == 1:
            return self.route(keys[0]).destinations
        return tuple(dict.fromkeys(destination for key in keys for destination in self.route(key).destinations))

    def match_headers(self, headers: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the destinations of a message by its headers; only a headers exchange has an answer."""
        raise TypeError(f"a {self.type} exchange does not route by headers")

    def _end_standing(self) -> None:
        if self._standing is not None:
            self._standing.end()
            self._standing = None

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
    """Leads a message to the queue that its routing key names; no binding is ever made or removed.

    Nothing is alternate to it, and it is itself no alternate that leads anywhere: that has no binding to follow.
    Source: RabbitMQ 3.10, rabbit_exchange:route/2.
    """

    type = "direct"

    def __init__(self, lookup: Callable[[str], Any | None], *, cache_limits: CacheLimits | None = None) -> None:
        super().__init__("", durable=True, cache_limits=cache_limits)
        self._lookup = lookup

    @property
    def alternate(self) -> str | None:
        """Return None, whatever a policy says."""
        return None

    @alternate.setter
    def alternate(self, name: str | None) -> None:
        pass

    def touch(self, queue_name: str) -> None:
        """Invalidate the route of a queue that has just been declared or deleted."""
        self.cache.drop(queue_name)

    def _attach(self, binding: Binding) -> None:
        raise TypeError("the default exchange has implicit bindings only")

    _detach = _attach

    def _resolve(self, key: str) -> tuple[Any, ...]:
        queue = self._lookup(key)
        return () if queue is None else (queue,)


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

    def match(self, keys: Sequence[str], fields: MessageFields) -> tuple[Any, ...]:
        """Return all destinations."""
        return self.route("").destinations

    def _attach(self, binding: Binding) -> None:
        if count_up(self._destinations, binding.destination):
            self._drop_routes()

    def _detach(self, binding: Binding) -> None:
        if count_down(self._destinations, binding.destination):
            self._drop_routes()

    def _drop_routes(self) -> None:
        if self._route is not None:
            self._route.end()
            self._route = None
