"""Routing from an exchange through other exchanges to queues."""

from collections.abc import Mapping
from typing import Any

import pytest

from broker.routing.cache import CacheLimits
from broker.routing.direct_exchange import DefaultExchange
from broker.routing.exchange import Exchange
from broker.routing.exchange_types import make_exchange
from broker.routing.router import Router


class Fields:
    """The headers of one message."""

    def __init__(self, headers: Mapping[str, Any] | None = None) -> None:
        self.headers = headers or {}

    def property(self, name: str) -> str | None:
        """Return nothing."""
        return None


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


def test_the_key_stays_and_each_queue_comes_once() -> None:
    """Every exchange on the path matches the publisher's key; cycles end, and each queue gets one copy."""
    room = Room(x="fanout", y="direct", z="topic")
    room.bind("x", "q", "y", "z", key="whatever")
    room.bind("y", "q", "r", key="a.b")
    room.bind("z", "s", "x", "z", "y", key="a.#")
    assert room.queues("x", "a.b") == {"q", "r", "s"}
    assert room.queues("z", "a") == {"s", "q"}
    assert room.queues("y", "a") == set()


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


def test_alternates() -> None:
    """An unroutable message goes to the alternate exchange, and on to the alternate of that one."""
    room = Room(x="direct", y="direct", z="fanout")
    room.exchanges["x"].set_alternate("y")
    room.exchanges["y"].set_alternate("z")
    room.bind("x", "q", key="a")
    room.bind("y", "r", key="b")
    room.bind("z", "s")
    assert (room.queues("x", "a"), room.queues("x", "b"), room.queues("x", "c")) == ({"q"}, {"r"}, {"s"})
    room.exchanges["z"].set_alternate("x")
    assert room.queues("y", "a") == {"s"}


def test_alternates_of_inner_exchanges_and_of_none() -> None:
    """A match that leads to an exchange without a route counts; only the inner exchange's alternate applies."""
    room = Room(x="direct", y="direct", ax="fanout", ay="fanout")
    room.exchanges["x"].set_alternate("ax")
    room.bind("x", "y")
    room.bind("ax", "from x")
    room.bind("ay", "from y")
    assert room.queues("x") == set()
    room.exchanges["y"].set_alternate("ay")
    assert room.queues("x") == {"from y"}


@pytest.mark.parametrize("alternate", ["missing", ""])
def test_alternates_that_lead_nowhere(alternate: str) -> None:
    """An alternate that does not exist, or is the default exchange, gets nothing, as in RabbitMQ."""
    room = Room(x="direct")
    room.exchanges["x"].set_alternate(alternate)
    assert room.queues("x") == set()


def test_an_alternate_that_appears_ends_the_route() -> None:
    """The route ends when an alternate appears, vanishes or is replaced; an unrelated route stays."""
    room = Room(x="fanout", other="topic")
    exchange = room.exchanges["x"]
    exchange.set_alternate("y")
    room.bind("other", "x")
    for _ in range(3):
        missing, composite, unrelated = (
            room.router.route(exchange, "k"),
            room.router.route(room.exchanges["other"], "k"),
            room.router.route(room.exchanges["other"], "elsewhere"),
        )
    assert missing.live
    assert composite.live
    room.declare("y", "fanout")
    assert not missing.live
    assert not composite.live
    assert unrelated.live
    room.bind("y", "q")
    assert room.queues("x") == room.queues("other") == {"q"}
    room.exchanges.pop("y").end()
    room.router.exchange_changed("y")
    assert room.queues("x") == room.queues("other") == set()


def test_setting_an_alternate_ends_routes_that_lead_nowhere() -> None:
    """An exchange's own empty route ends when an alternate is set."""
    room = Room(x="direct", y="fanout")
    room.bind("y", "q")
    for _ in range(2):
        route = room.router.route(room.exchanges["x"], "k")
    assert route.live
    room.exchanges["x"].set_alternate("y")
    assert not route.live
    assert room.queues("x") == {"q"}


def test_the_default_exchange_has_no_alternate() -> None:
    """A policy that matches the name of the default exchange changes nothing."""
    room = Room(y="fanout")
    room.bind("y", "q")
    room.exchanges[""].set_alternate("y")
    assert room.queues("", "unknown") == set()
    assert room.queues("", "k") == {"queue k"}


def test_headers_further_on_make_it_dynamic() -> None:
    """Each message is routed by itself while a headers exchange is reachable; a route says so."""
    room = Room(x="topic", y="fanout", h="headers")
    exchange = room.exchanges["x"]
    room.bind("x", "q", key="#")
    room.bind("x", "y", key="k")
    assert not room.router.dynamic(exchange)
    room.exchanges["y"].set_alternate("h")
    assert room.router.dynamic(exchange)
    room.exchanges["h"].bind("r", "", {"a": 1})
    route = room.router.route(exchange, "k")
    assert route.live
    assert route.destinations == ()
    assert set(room.router.match(exchange, "k", Fields({"a": 1}))) == {"q", "r"}
    assert set(room.router.match(exchange, "k", Fields({"a": 2}))) == {"q"}
    assert set(room.router.match(exchange, "other", Fields({"a": 1}))) == {"q"}
    room.exchanges["h"].bind("s", "", {"a": 2})
    assert route.live
    room.exchanges["y"].set_alternate(None)
    assert not route.live
    assert not room.router.dynamic(exchange)


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
            source.sever(bundle)
        del room.exchanges[name]
        room.router.exchange_changed(name)
    assert set(room.router._standing) <= {"x"}
    assert not room.router._absent.made
    assert not room.exchanges["x"].onward
