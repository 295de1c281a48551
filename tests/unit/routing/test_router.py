"""Routing from an exchange through other exchanges to queues."""

from broker.routing.cache import CacheLimits
from broker.routing.direct_exchange import DefaultExchange
from broker.routing.exchange import Exchange
from broker.routing.exchange_types import make_exchange
from broker.routing.router import Router
from tests.unit.routing.message_fields import Fields


class Room:
    """Exchanges by name, and the router over them."""

    def __init__(self, **types: str) -> None:
        self.exchanges: dict[str, Exchange] = {"": DefaultExchange({"k": "queue k"}.get)}
        self.router = Router(self.exchanges.get, cache_limits=CacheLimits(entries=64))
        for name, kind in types.items():
            self.declare(name, kind)

    def declare(self, name: str, type: str) -> Exchange:
        """Declare an exchange."""
        exchange = self.exchanges[name] = make_exchange(name, type)
        self.router.exchange_changed(name)
        return exchange

    def bind(self, source: str, *destinations: str, key: str = "k") -> None:
        """Bind queues and exchanges by name to an exchange."""
        for destination in destinations:
            self.exchanges[source].bind(self.exchanges.get(destination, destination), key, {})

    def queues(self, name: str, key: str = "k") -> set[str]:
        """Return the destinations of a message, by a route and by itself."""
        exchange = self.exchanges[name]
        found = self.router.route(exchange, key).destinations
        assert set(found) == set(self.router.match(exchange, key, Fields()))
        assert len(set(found)) == len(found)
        return set(found)


def test_a_plain_exchange_answers_itself() -> None:
    """The route is the exchange's own if only queues are bound and one matches, or no alternate is set."""
    room = Room(x="topic", y="fanout")
    room.bind("x", "q", key="a")
    room.bind("x", "y", key="b")
    exchange = room.exchanges["x"]
    for key in ("a", "nowhere"):
        exchange.route(key)
        assert room.router.route(exchange, key) is exchange.route(key)
    exchange.set_alternate("y")
    exchange.route("a")
    assert room.router.route(exchange, "a") is exchange.route("a")


def test_a_composite_is_cached_and_ends_with_its_parts() -> None:
    """The second use caches the composite route; a change at its far end ends it, an unrelated one does not."""
    room = Room(x="fanout", y="topic")
    room.bind("x", "y")
    room.bind("y", "q", key="a.*")
    first = room.router.route(room.exchanges["x"], "a.b")
    assert not first.live
    second = room.router.route(room.exchanges["x"], "a.b")
    assert second.live
    assert room.router.route(room.exchanges["x"], "a.b") is second
    room.bind("y", "r", key="c.*")
    assert second.live
    room.bind("y", "r", key="a.#")
    assert not second.live
    assert room.queues("x", "a.b") == {"q", "r"}


def test_the_default_exchange_has_no_alternate() -> None:
    """A policy that matches the name of the default exchange changes nothing."""
    room = Room(y="fanout")
    room.bind("y", "q")
    room.exchanges[""].set_alternate("y")
    assert room.queues("", "unknown") == set()
    assert room.queues("", "k") == {"queue k"}


def test_the_route_of_a_dynamic_exchange_ends_when_asking_is_needless() -> None:
    """The dynamic route ends after an unbind, the deletion of an intermediate exchange, or a new alternate."""
    room = Room(x="topic", y="topic", h="headers")
    exchange, inner, last = room.exchanges["x"], room.exchanges["y"], room.exchanges["h"]
    room.bind("x", "h")
    route = room.router.route(exchange, "k")
    assert route is room.router.route(exchange, "other")
    room.bind("x", "y")
    assert not route.live
    route = room.router.route(exchange, "k")
    exchange.unbind(last, "k", {})
    assert not route.live
    exchange.unbind(inner, "k", {})
    exchange.set_alternate("y")
    inner.set_alternate("h")
    route = room.router.route(exchange, "k")
    assert room.router.dynamic(exchange)
    inner.end()
    assert not route.live
    room.bind("x", "h", key="only")
    exchange.set_alternate("missing")
    route = room.router.route(exchange, "k")
    assert route.live
    room.declare("missing", "fanout")
    assert not route.live


def test_an_alternate_is_for_messages_none_of_whose_keys_matched() -> None:
    """With CC, one matching key keeps the message from the alternate; each queue gets one copy."""
    room = Room(x="direct", y="direct")
    room.exchanges["x"].set_alternate("y")
    room.bind("x", "q", key="a")
    room.bind("x", "q", "r", key="b")
    room.bind("y", "s", key="c")
    exchange, match = room.exchanges["x"], room.router.match
    assert set(match(exchange, "a", Fields(), ["c"])) == {"q"}
    assert match(exchange, "a", Fields(), ["b", "a"]) == ("q", "r")
    assert match(exchange, "none", Fields(), ["c"]) == ("s",)


def test_nothing_is_left_of_what_was_deleted() -> None:
    """After a deletion, no remaining exchange refers to a route of the deleted ones."""
    room = Room(x="fanout", keep="direct")
    room.bind("keep", "q")
    for number in range(100):
        name = f"y{number}"
        inner = room.declare(name, "headers")
        inner.set_alternate("missing")
        room.bind("x", name)
        for _ in range(3):
            room.router.route(room.exchanges["x"], "k")
            room.router.route(inner, "k")
        inner.end()
        for source, bundle in list(inner.incoming.items()):
            source.remove_bundle(bundle)
        del room.exchanges[name]
        room.router.exchange_changed(name)
    assert set(room.router._standing) <= {"x"}
    assert not room.router._absent.dependents
    assert not room.exchanges["x"].onward
