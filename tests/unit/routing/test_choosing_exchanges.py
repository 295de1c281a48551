"""The exchanges that send a message to one destination by chance, or by the hash of its key."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from broker.routing.exchange import Exchange
from broker.routing.exchange_types import make_exchange
from broker.routing.headers_exchange import BindingArgumentError
from tests.unit.routing.message_fields import Fields, Queue

KEYS = [f"customer.{number}" for number in range(3_000)]


def bound(kind: str, names: str) -> tuple[Exchange, list[Queue]]:
    """Return an exchange and queues that are bound to it."""
    exchange, queues = make_exchange("x", kind), [Queue(name) for name in names]
    for queue in queues:
        exchange.bind(queue, "", {})
    return exchange, queues


def chosen(exchange: Exchange) -> list[str]:
    """Return the queue of each key, one message each."""
    found = []
    for key in KEYS:
        (queue,) = exchange.match([key], Fields())
        found.append(queue.name)
    return found


@pytest.mark.parametrize("kind", ["x-random", "x-local-random"])
def test_each_queue_is_drawn_as_often_as_any_other(kind: str) -> None:
    """Three queues get a third each; one that leaves gets nothing, and one that comes back its share."""
    exchange, queues = bound(kind, "abc")
    drawn = chosen(exchange)
    assert all(abs(count - 1_000) < 120 for count in Counter(drawn).values())
    assert drawn != chosen(exchange), "not the same sequence again"
    assert drawn[:20] != sorted(drawn[:20])
    exchange.unbind(queues[0], "", {})
    assert set(chosen(exchange)) == {"b", "c"}
    exchange.stop_routing_to(exchange.bundles[queues[1]])
    assert set(chosen(exchange)) == {"c"}
    exchange.unbind(queues[2], "", {})
    assert exchange.match(["k"], Fields()) == ()
    assert exchange.route("k").destinations == ()


def test_a_queue_that_is_bound_twice_is_drawn_twice_as_often() -> None:
    """As in RabbitMQ, a binding is drawn."""
    exchange, queues = bound("x-random", "ab")
    chosen(exchange)
    exchange.bind(queues[0], "again", {})
    assert abs(Counter(chosen(exchange))["a"] - 2_000) < 120
    exchange.unbind(queues[0], "again", {})
    assert abs(Counter(chosen(exchange))["a"] - 1_500) < 120


@pytest.mark.parametrize(
    ("destination", "key", "text"),
    [
        (Queue("q"), "k", "Non empty binding 'k' key not permitted"),
        (make_exchange("y", "fanout"), "", "Destination not found"),
        (Queue("q", {"x-queue-type": "quorum"}), "", "Queue type rabbit_quorum_queue not valid for this exchange type"),
    ],
)
def test_a_local_random_exchange_binds_classic_queues_without_a_key(destination: Any, key: str, text: str) -> None:
    """Other bindings are refused with RabbitMQ's texts, and nothing is bound."""
    exchange = make_exchange("x", "x-local-random")
    with pytest.raises(BindingArgumentError) as refused:
        exchange.bind(destination, key, {})
    assert str(refused.value) == text
    assert exchange.binding_count == 0
    assert exchange.match(["k"], Fields()) == ()


def test_a_key_goes_to_the_same_queue_whatever_the_order_of_the_bindings() -> None:
    """The hash of the key chooses, in about equal shares; a second binding of a queue doubles its share."""
    exchange, queues = bound("x-modulus-hash", "abc")
    first = chosen(exchange)
    assert chosen(exchange) == first == chosen(bound("x-modulus-hash", "cab")[0])
    assert all(abs(count - 1_000) < 120 for count in Counter(first).values())
    exchange.bind(queues[0], "again", {})
    assert abs(Counter(chosen(exchange))["a"] - 1_500) < 150
    exchange.unbind(queues[0], "again", {})
    assert chosen(exchange) == first
    exchange.stop_routing_to(exchange.bundles[queues[1]])
    assert set(chosen(exchange)) == {"a", "c"}


def test_of_several_keys_the_first_one_chooses() -> None:
    """CC adds no second destination."""
    exchange, _ = bound("x-modulus-hash", "abcdef")
    assert all(exchange.match([key, "other"], Fields()) == exchange.match([key], Fields()) for key in KEYS[:50])
