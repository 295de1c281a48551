"""Exchanges: bindings and the routes that follow from them."""

import pytest

from broker.routing.bundle import make_binding
from broker.routing.direct_exchange import DefaultExchange
from broker.routing.exchange import Exchange
from broker.routing.exchange_types import make_exchange
from broker.routing.pattern import BindingKeyError, PatternLimits
from broker.routing.topic_exchange import TopicExchange

ROUTED = ["direct", "fanout", "topic"]


def warm_route(exchange: Exchange, key: str) -> None:
    """Look a key up often enough to cache its route."""
    for _ in range(2):
        exchange.route(key)


def test_settings_are_kept() -> None:
    """The exchange keeps the properties of its declare, which a later declare is compared with."""
    arguments = {"alternate-exchange": "ae"}
    exchange = make_exchange("x", "topic", durable=True, auto_delete=True, internal=True, arguments=arguments)
    assert (exchange.name, exchange.type, exchange.durable, exchange.auto_delete, exchange.internal) == (
        "x",
        "topic",
        True,
        True,
        True,
    )
    assert exchange.arguments == arguments
    assert not exchange.by_headers


@pytest.mark.parametrize("exchange_type", [*ROUTED, "headers"])
def test_bind_and_unbind_are_idempotent(exchange_type: str) -> None:
    """A repeated bind is one binding, arguments tell two apart, and a second unbind finds nothing."""
    exchange = make_exchange("x", exchange_type)
    made_with = {"v": 1}
    assert exchange.bind("q", "k", {})
    assert not exchange.bind("q", "k", {})
    assert exchange.bind("q", "k", made_with)
    assert exchange.is_bound("q", "k", {"v": 1})
    assert not exchange.is_bound("q", "k", {"v": 2})
    first, second = make_binding("x", "q", "k", {}), make_binding("x", "q", "k", {"v": 1})
    assert list(exchange.bindings) == [first, second]
    assert second in exchange.bindings
    assert make_binding("y", "q", "k", {}) not in exchange.bindings
    assert exchange.unbind("q", "k", {"v": 2}) is None
    assert exchange.unbind("q", "k", {"v": 1}) is made_with
    assert exchange.unbind("q", "k", {"v": 1}) is None
    assert exchange.unbind("q", "k", {}) == {}
    assert exchange.unbind("q", "k", {}) is None
    assert exchange.binding_count == 0
    assert not exchange.bundles


@pytest.mark.parametrize("exchange_type", ROUTED)
def test_the_end_of_an_exchange_ends_the_routes(exchange_type: str) -> None:
    """A deleted exchange has no bindings and no live route, not even an empty one."""
    exchange = make_exchange("x", exchange_type)
    for queue in "abc":
        exchange.bind(queue, "k", {})
    warm_route(exchange, "k")
    warm_route(exchange, "elsewhere")
    routes = [exchange.route("k"), exchange.route("elsewhere")]
    assert all(route.live for route in routes)
    bundles = exchange.end()
    assert not any(route.live for route in routes)
    assert exchange.binding_count == 0
    assert list(exchange.bindings) == []
    assert [bundle.destination for bundle in bundles] == ["a", "b", "c"]
    assert [exchange.remove_keys(bundle, 9) for bundle in bundles] == [1, 1, 1]
    assert exchange.route("k").destinations == ()
    assert exchange.end() == []


def test_literal_key_touches_its_own_route_only() -> None:
    """On a topic exchange a literal key invalidates one cached key, a wildcard all matching ones."""
    exchange = make_exchange("x", "topic")
    exchange.bind("q", "a.#", {})
    for key in ("a.b", "a.c"):
        warm_route(exchange, key)
    touched, untouched = exchange.route("a.b"), exchange.route("a.c")
    exchange.bind("r", "a.b", {})
    assert not touched.live
    assert untouched.live
    assert exchange.route("a.b").destinations == ("q", "r")
    exchange.bind("s", "*.c", {})
    assert not untouched.live
    assert set(exchange.route("a.c").destinations) == {"q", "s"}


@pytest.mark.parametrize("exchange_type", ROUTED)
def test_binding_that_adds_no_destination_touches_nothing(exchange_type: str) -> None:
    """A second binding of a destination by the same key, and its removal, leave the route alive."""
    exchange = make_exchange("x", exchange_type)
    exchange.bind("q", "#", {})
    warm_route(exchange, "#")
    route = exchange.route("#")
    exchange.bind("q", "#", {"v": 1})
    exchange.unbind("q", "#", {"v": 1})
    assert route.live
    assert route.destinations == ("q",)


def test_refused_binding_key_leaves_nothing() -> None:
    """A key over the limits is refused before any change, and unbinding it finds nothing."""
    exchange = make_exchange("x", "topic")
    with pytest.raises(BindingKeyError):
        exchange.bind("q", "#.a.#.b.#", {})
    assert not exchange.binding_count
    assert exchange.unbind("q", "#.a.#.b.#", {}) is None
    assert exchange.route("a.b").destinations == ()


def test_limits_are_settings() -> None:
    """Limits are accepted for every type and apply to topic exchanges."""
    wide = PatternLimits(hashes=3)
    for exchange_type in [*ROUTED, "headers"]:
        exchange = make_exchange("x", exchange_type, pattern_limits=wide)
        assert exchange.bind("q", "#.a.#.b.#", {})


def test_only_a_headers_exchange_routes_by_headers() -> None:
    """Other exchange types refuse, so that a wrong call cannot lose a message silently."""
    with pytest.raises(TypeError):
        make_exchange("x", "topic").match_headers({})


def test_default_exchange_has_no_bindings_of_its_own() -> None:
    """The default exchange finds queues by name and cannot be bound."""
    exchange = DefaultExchange({"q": 1}.get)
    assert (exchange.name, exchange.type, exchange.durable) == ("", "direct", True)
    assert exchange.route("q").destinations == (1,)
    assert exchange.route("other").destinations == ()
    with pytest.raises(TypeError):
        exchange.bind("q", "k", {})
    assert exchange.binding_count == 0


@pytest.mark.parametrize("exchange_type", [*ROUTED, "headers"])
def test_twenty_thousand_destinations(exchange_type: str) -> None:
    """Each of 20,000 destinations gets one copy, in binding order, and is removed individually."""
    exchange = make_exchange("x", exchange_type)
    for number in range(20_000):
        exchange.bind(number, "k", {})
    found = exchange.match_headers({}) if exchange.by_headers else exchange.route("k").destinations
    assert found == tuple(range(20_000))
    for number in range(19_999):
        exchange.unbind(number, "k", {})
    found = exchange.match_headers({}) if exchange.by_headers else exchange.route("k").destinations
    assert found == (19_999,)


@pytest.mark.parametrize("exchange_type", [*ROUTED, "headers"])
def test_lifecycle_leaves_nothing(exchange_type: str) -> None:
    """Every structure is empty after the last unbind, so binds and unbinds do not accumulate memory."""
    exchange = make_exchange("x", exchange_type)
    for queue in ("q", "r"):
        for key in ("", "a.b", "a.*", "#.a.#", "#"):
            exchange.bind(queue, key, {})
            warm_route(exchange, key)
    for binding in list(exchange.bindings)[::-1]:
        exchange.unbind(binding.destination, binding.key, binding.arguments)
    for attribute in ("bundles", "_unrouted", "_keys", "_predicates"):
        assert not getattr(exchange, attribute, ()), attribute
    assert not isinstance(exchange, TopicExchange) or exchange._index.size == 0
