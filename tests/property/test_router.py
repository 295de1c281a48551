"""The router against a naive traversal of the graph, under changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.routing.bundle import Bundle, Destination
from broker.routing.cache import CacheLimits
from broker.routing.exchange import Exchange
from broker.routing.exchange_types import make_exchange
from broker.routing.index import CHOICES
from broker.routing.route import Route
from broker.routing.router import Router
from tests.property.topic_reference import matches
from tests.unit.routing.message_fields import Fields

TYPES = ("direct", "fanout", "topic", "headers")
ALL_NAMES = ("x1", "x2", "x3", "x4")
ALL_KEYS = ("a", "b", "a.b")
ALL_HEADERS: tuple[dict[str, Any], ...] = ({}, {"h": 1})
NAMES = st.sampled_from(ALL_NAMES)
PATTERNS = st.sampled_from([*ALL_KEYS, "#", "*", "a.#"])
CHANGES = st.one_of(
    st.tuples(st.just("declare"), NAMES, st.sampled_from(TYPES), st.just("")),
    st.tuples(st.just("delete"), NAMES, st.none(), st.just("")),
    st.tuples(st.just("delete queue"), st.sampled_from("qr"), st.none(), st.just("")),
    st.tuples(st.just("shed"), st.just(""), st.integers(1, 3), st.just("")),
    st.tuples(st.just("alternate"), NAMES, st.one_of(NAMES, st.none(), st.just("")), st.just("")),
    st.tuples(st.sampled_from(["bind", "bind", "unbind"]), NAMES, NAMES, PATTERNS),
    st.tuples(st.sampled_from(["bind", "unbind"]), NAMES, st.sampled_from("qr"), PATTERNS),
)


@dataclass
class Plan:
    """The same topology as plain tables, traversed anew for every query."""

    types: dict[str, str] = field(default_factory=dict)
    alternates: dict[str, str] = field(default_factory=dict)
    bindings: set[tuple[str, str, str]] = field(default_factory=set)

    def step(self, name: str, key: str, headers: Mapping[str, Any]) -> set[str]:
        """Return the destinations of one exchange; a binding to a headers exchange requires h = 1."""
        match self.types[name]:
            case "direct":
                return {to for source, to, bound in self.bindings if source == name and bound == key}
            case "fanout":
                return {to for source, to, _ in self.bindings if source == name}
            case "headers":
                return {to for source, to, _ in self.bindings if source == name and headers.get("h") == 1}
            case _:
                words = key.split(".")
                return {
                    to for source, to, bound in self.bindings if source == name and matches(bound.split("."), words)
                }

    def route(self, name: str, key: str, headers: Mapping[str, Any]) -> set[str]:
        """Return the queues that a message reaches."""
        seen, queues, pending = {name}, set(), [name]
        while pending:
            current = pending.pop()
            reached = self.step(current, key, headers) or {self.alternates.get(current, "")}
            queues |= reached & {"q", "r"}
            new = (reached & self.types.keys()) - seen
            seen |= new
            pending += new
        return queues

    def dynamic(self, name: str) -> bool:
        """Return whether a headers exchange is reachable."""
        seen, pending = {name}, [name]
        while pending:
            current = pending.pop()
            onward = {to for source, to, _ in self.bindings if source == current} | {self.alternates.get(current, "")}
            new = (onward & self.types.keys()) - seen
            seen |= new
            pending += new
        return any(self.types[reached] == "headers" for reached in seen)


class Queue(Destination):
    """A queue between its declare and its deletion."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class World:
    """The exchanges under test, changed as a vhost changes them; the indexes lose deleted ones later."""

    def __init__(self, limits: CacheLimits, index: str) -> None:
        self.limits = limits
        self.index = index
        self.queues = {name: Queue(name) for name in "qr"}
        self.deferred: list[Bundle] = []
        self.plan = Plan()
        self.exchanges: dict[str, Exchange] = {}
        self.router = Router(self.exchanges.get, cache_limits=limits)

    def destination(self, name: str) -> Any:
        """Return the exchange or the queue with a name."""
        return self.exchanges.get(name) if name.startswith("x") else self.queues[name]

    def arguments(self, name: str) -> dict[str, Any]:
        """Return the binding arguments for an exchange."""
        return {"h": 1} if self.plan.types[name] == "headers" else {}

    def declare(self, name: str, type: str) -> None:
        """Declare an exchange that does not exist."""
        if name not in self.exchanges:
            self.exchanges[name] = make_exchange(name, type, cache_limits=self.limits, topic_index=self.index)
            self.plan.types[name] = type
            self.router.exchange_changed(name)

    def delete(self, name: str) -> None:
        """Delete an exchange with the bindings from it and to it."""
        exchange = self.exchanges.pop(name, None)
        if exchange is None:
            return
        self.part(exchange)
        self.deferred += exchange.end()
        assert not exchange.binding_count
        del self.plan.types[name]
        self.plan.alternates.pop(name, None)
        self.plan.bindings = {known for known in self.plan.bindings if name not in known[:2]}
        self.router.exchange_changed(name)

    def delete_queue(self, name: str) -> None:
        """Remove the bindings to a queue."""
        self.part(self.queues[name])
        self.queues[name] = Queue(name)
        self.plan.bindings = {known for known in self.plan.bindings if known[1] != name}

    def part(self, destination: Destination) -> None:
        """Remove the bindings to a destination, small bundles at once."""
        for source, bundle in list(destination.incoming.items()):
            if source.deleted:
                continue
            if len(bundle) == 1:
                source.remove_bundle(bundle)
            else:
                source.stop_routing_to(bundle)
                self.deferred.append(bundle)
        assert not list(destination.incoming_bindings)

    def shed(self, most: int) -> None:
        """Remove some keys of deleted objects from the indexes."""
        if self.deferred:
            bundle = self.deferred[0]
            count = len(bundle)
            assert bundle.source.remove_keys(bundle, most) == min(count, most)
            if not bundle:
                del self.deferred[0]

    def set_alternate(self, name: str, alternate: str | None) -> None:
        """Set another alternate exchange, as a policy does."""
        if name in self.exchanges:
            self.exchanges[name].set_alternate(alternate)
            self.plan.alternates[name] = alternate or ""
            self.router.exchange_changed(name)

    def bind(self, source: str, destination: str, key: str) -> None:
        """Bind a queue or an exchange."""
        to = self.destination(destination)
        if source in self.exchanges and to is not None:
            self.exchanges[source].bind(to, key, self.arguments(source))
            self.plan.bindings.add((source, destination, key))

    def unbind(self, source: str, destination: str, key: str) -> None:
        """Undo a bind."""
        to = self.destination(destination)
        if source in self.exchanges and to is not None:
            self.exchanges[source].unbind(to, key, self.arguments(source))
            self.plan.bindings.discard((source, destination, key))

    def change(self, verb: str, name: str, what: Any, key: str) -> None:
        """Apply one drawn change, if it is valid now."""
        match verb:
            case "declare":
                self.declare(name, what)
            case "delete":
                self.delete(name)
            case "delete queue":
                self.delete_queue(name)
            case "shed":
                self.shed(what)
            case "alternate":
                self.set_alternate(name, what)
            case "bind":
                self.bind(name, what, key)
            case _:
                self.unbind(name, what, key)

    def check(self, name: str, key: str) -> Route:
        """Return a route after comparing it, and the routing of single messages, with the plan."""
        exchange = self.exchanges[name]
        dynamic = self.plan.dynamic(name)
        assert self.router.dynamic(exchange) == dynamic
        for headers in ALL_HEADERS:
            found = self.router.match(exchange, key, Fields(headers))
            assert {queue.name for queue in found} == self.plan.route(name, key, headers)
            assert len(set(found)) == len(found)
        route = self.router.route(exchange, key)
        assert len(set(route.destinations)) == len(route.destinations)
        assert {queue.name for queue in route.destinations} == (set() if dynamic else self.plan.route(name, key, {}))
        assert all(queue is self.queues[queue.name] for queue in route.destinations)
        return route


WIDE = CacheLimits()
NARROW = CacheLimits(entries=3, cache_bytes=2500, window=9)


@pytest.mark.parametrize(("limits", "index"), [(NARROW, CHOICES[0]), *((WIDE, choice) for choice in CHOICES)])
@given(changes=st.lists(CHANGES, min_size=10, max_size=40))
@settings(max_examples=30)
def test_no_live_route_is_ever_wrong(limits: CacheLimits, index: str, changes: list[tuple[str, str, Any, str]]) -> None:
    """Any route that was ever returned may be used while it is live, whatever changed since."""
    world = World(limits, index)
    for name, kind in zip(ALL_NAMES, ["topic", "fanout", "direct"], strict=False):
        world.declare(name, kind)
    world.set_alternate("x3", "x4")  # an exchange that does not exist yet
    world.bind("x2", "x1", "")
    world.bind("x1", "x3", "a.#")
    kept: dict[Route, tuple[str, str, bool]] = {}
    for change in changes:
        world.change(*change)
        for route, (name, key, dynamic) in kept.items():
            if not route.live:
                assert not route.dependents
                assert not route.parts
                continue
            assert name in world.exchanges
            if dynamic:  # a route that is to be asked per message must end when that is no longer needed
                assert world.plan.dynamic(name)
                continue
            # Still right, even if a headers exchange became reachable: not by this key, or the route would have ended.
            for headers in ALL_HEADERS:
                assert {queue.name for queue in route.destinations} == world.plan.route(name, key, headers)
            assert all(queue is world.queues[queue.name] for queue in route.destinations)
        kept = {route: known for route, known in kept.items() if route.live}
        for _ in range(3):  # often enough to cache every route before the next change
            for name in world.exchanges:
                for key in ALL_KEYS:
                    kept[world.check(name, key)] = (name, key, world.plan.dynamic(name))
    for name in list(world.exchanges):
        world.delete(name)
    assert not any(route.live or route.dependents or route.parts for route in kept)
    while world.deferred:
        world.shed(2)
    assert not any(queue.incoming for queue in world.queues.values())
    assert not world.router._absent.dependents
