"""The outlet of an exchange: it takes what other brokers want, and counts as a destination."""

from __future__ import annotations

from random import Random

import pytest

from broker.routing.cache import CacheLimits
from broker.routing.exchange import PATTERNS_AT_ONCE, Exchange
from broker.routing.exchange_types import DELAYED_TYPE, EXCHANGE_TYPES, make_exchange
from broker.routing.router import Router
from tests.unit.routing.message_fields import Fields, Queue, pattern_matches

KINDS = tuple(kind for kind in EXCHANGE_TYPES if kind != DELAYED_TYPE)
KEYS = ("", "a", "a.b", "a.b.c", "b", "b.c", "$a.b")
PATTERNS = ("#", "a.#", "a.*", "*", "b", "#.c", "")


def reached(router: Router, exchange: Exchange, key: str) -> set[str]:
    """Return the names of the queues that a message reaches: by its route where the key decides, and by itself."""
    by_itself = router.match(exchange, key, Fields())
    if not router.dynamic(exchange):
        for _ in range(3):  # resolved, admitted, cached
            assert set(router.route(exchange, key).destinations) == set(by_itself)
    assert len(set(by_itself)) == len(by_itself)
    return {one.name for one in by_itself}


@pytest.mark.parametrize(("kind", "dialect"), [*((kind, "amqp") for kind in KINDS), ("topic", "mqtt")])
def test_outlet_takes_what_its_patterns_match_on_every_type(kind: str, dialect: str) -> None:
    """Patterns come and go while routes are cached; the other destinations stay the same."""
    random = Random(5)
    arguments = {"x-topic-dialect": dialect} if kind == "topic" else {"x-cache-size": 1}
    exchange = make_exchange("x", kind, arguments=arguments, cache_limits=CacheLimits(entries=4))
    exchange.bind(Queue("bound"), {"x-consistent-hash": "1", "x-local-random": ""}.get(kind, "a"), {})
    router = Router({"x": exchange}.get)
    before = {key: reached(router, exchange, key) for key in KEYS}
    exchange.open_outlet(Queue("outlet"))
    assert {key: reached(router, exchange, key) for key in KEYS} == before
    wanted: set[str] = set()
    for _ in range(200):
        changed = set(random.sample(PATTERNS, random.randint(1, 3)))
        exchange.forward(changed - wanted, changed & wanted)
        wanted ^= changed
        for key in random.sample(KEYS, 3):
            takes = any(pattern_matches(pattern, key) for pattern in wanted)
            assert reached(router, exchange, key) == before[key] | ({"outlet"} if takes else set())


def test_outlet_is_no_binding_and_yet_a_destination() -> None:
    """It is not counted; the alternate exchange gets only what it does not take."""
    exchange = make_exchange("x", "topic", arguments={"alternate-exchange": "y"})
    alternate = make_exchange("y", "fanout")
    alternate.bind(Queue("rest"), "", {})
    router = Router({"x": exchange, "y": alternate}.get)
    exchange.open_outlet(Queue("outlet"))
    exchange.forward(["a.#"])
    assert exchange.binding_count == 0
    assert not list(exchange.bindings)
    assert reached(router, exchange, "a.b") == {"outlet"}
    assert reached(router, exchange, "b") == {"rest"}


def test_message_enters_the_outlet_of_the_first_exchange_that_has_one() -> None:
    """Other brokers pass on the messages of an overlay exchange themselves, and must not get them twice."""
    names = ("plain", "x", "y", "z")
    exchanges = {name: make_exchange(name, "topic") for name in names}
    router = Router(exchanges.get)
    for name in ("x", "z"):
        exchanges[name].open_outlet(Queue(f"outlet of {name}"))
        exchanges[name].forward(["#"])
    exchanges["plain"].bind(exchanges["x"], "#", {})
    exchanges["x"].bind(exchanges["y"], "#", {})
    exchanges["y"].bind(exchanges["z"], "#", {})
    exchanges["z"].bind(Queue("queue"), "#", {})
    for name in ("plain", "x"):
        assert reached(router, exchanges[name], "a") == {"outlet of x", "queue"}
    for name in ("y", "z"):
        assert reached(router, exchanges[name], "a") == {"outlet of z", "queue"}
    exchanges["x"].forward([], ["#"])  # nobody wants it of x now; those who want it of z have it from z alone
    assert reached(router, exchanges["x"], "a") == {"queue"}


def test_alternate_exchange_forwards_what_its_exchange_did_not() -> None:
    """A message that is unroutable at an exchange with an outlet enters that of the alternate exchange."""
    exchange = make_exchange("x", "topic", arguments={"alternate-exchange": "y"})
    alternate = make_exchange("y", "topic")
    router = Router({"x": exchange, "y": alternate}.get)
    for one in (exchange, alternate):
        one.open_outlet(Queue(f"outlet of {one.name}"))
    alternate.forward(["#"])
    assert reached(router, exchange, "a") == {"outlet of y"}
    exchange.forward(["a"])
    assert reached(router, exchange, "a") == {"outlet of x"}


def test_few_changed_patterns_end_only_the_routes_that_they_match() -> None:
    """A change costs the routes of its keys; very many changes end all."""
    exchange = make_exchange("x", "topic")
    exchange.bind(Queue("bound"), "#", {})
    exchange.open_outlet(Queue("outlet"))
    routes = {}
    for key in ("a.b", "b"):
        for _ in range(2):
            routes[key] = exchange.route(key)
    exchange.forward(["a.*"])
    assert [routes[key].live for key in ("a.b", "b")] == [False, True]
    exchange.forward([f"c.{number}" for number in range(PATTERNS_AT_ONCE + 1)])
    assert not routes["b"].live
