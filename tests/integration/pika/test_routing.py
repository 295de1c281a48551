"""Topic and fanout exchanges with pika, and routes that follow their bindings."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker.routing.index import CHOICES
from tests.integration.pika.conversation import channel_closed, drain

TOPIC_BINDINGS = [
    ("t1", "a.b.c"), ("t2", "a.*.c"), ("t3", "a.#.b"), ("t4", "a.b.b.c"), ("t5", "#"), ("t6", "#.#"), ("t7", "#.b"),
    ("t8", "*.*"), ("t9", "a.*"), ("t10", "*.b.c"), ("t11", "a.#"), ("t12", "a.#.#"), ("t13", "b.b.c"),
    ("t14", "a.b.b"), ("t15", "a.b"), ("t16", "b.c"), ("t17", ""), ("t18", "*.*.*"),
    ("t19", "vodka.martini"), ("t20", "a.b.c"),
    ("t21", "*.#"), ("t22", "#.*.#"), ("t23", "*.#.#"), ("t25", "*"), ("t26", "#.b.#"), ("t27", "args-test"),
]  # fmt: skip
"""RabbitMQ's own table of topic bindings (its routing suite), less the one pattern of three hashes."""

TOPIC_ROUTES = {
    "a.b.c": {1, 2, 5, 6, 10, 11, 12, 18, 20, 21, 22, 23, 26},
    "a.b": {3, 5, 6, 7, 8, 9, 11, 12, 15, 21, 22, 23, 26},
    "a.b.b": {3, 5, 6, 7, 11, 12, 14, 18, 21, 22, 23, 26},
    "": {5, 6, 17},
    "b.c.c": {5, 6, 18, 21, 22, 23, 26},
    "a.a.a.a.a": {5, 6, 11, 12, 21, 22, 23},
    "vodka.gin": {5, 6, 8, 21, 22, 23},
    "vodka.martini": {5, 6, 8, 19, 21, 22, 23},
    "b.b.c": {5, 6, 10, 13, 18, 21, 22, 23, 26},
    "nothing.here.at.all": {5, 6, 21, 22, 23},
    "oneword": {5, 6, 21, 22, 23, 25},
    "args-test": {5, 6, 21, 22, 23, 25, 27},
}


def declare_queues(channel: BlockingChannel, names: Iterable[str]) -> None:
    """Declare exclusive queues and turn confirms on, so that a publish returns when its message is in the queues."""
    for queue in names:
        channel.queue_declare(queue, exclusive=True)
    channel.confirm_delivery()


@pytest.mark.parametrize("index", CHOICES)
def test_topic_exchange_routes_as_rabbitmq(channel: BlockingChannel, name: str, index: str) -> None:
    """RabbitMQ's own table of patterns and keys gives the same queues, before and after removals, with every index."""
    queues = {label: f"{name}.{label}" for label, _ in TOPIC_BINDINGS}
    declare_queues(channel, queues.values())
    channel.exchange_declare(name, "topic", arguments={"x-topic-index": index})
    for label, pattern in TOPIC_BINDINGS:
        channel.queue_bind(queues[label], name, pattern)
    channel.queue_bind(queues["t27"], name, "args-test", {"foo": "bar"})

    def routes() -> dict[str, set[int]]:
        found: dict[str, set[int]] = {key: set() for key in TOPIC_ROUTES}
        for key in TOPIC_ROUTES:
            channel.basic_publish(name, key, key.encode())
        for label, queue in queues.items():
            for body in drain(channel, queue):
                found[body.decode()].add(int(label[1:]))
        return found

    assert routes() == TOPIC_ROUTES
    gone = {"t1": "a.b.c", "t5": "#", "t11": "a.#", "t19": "vodka.martini", "t21": "*.#"}
    for label, pattern in gone.items():
        channel.queue_unbind(queues[label], name, pattern)
    channel.queue_unbind(queues["t27"], name, "args-test", {"foo": "bar"})
    numbers = {int(label[1:]) for label in gone}
    assert routes() == {key: found - numbers for key, found in TOPIC_ROUTES.items()}
    channel.exchange_delete(name)


MQTT_ROUTES = {
    "foo": {"foo/#", "#", "+", "+/#"},
    "foo/": {"foo/#", "foo/+", "foo/+/#", "#", "+/+", "+/#"},
    "foo//bar": {"foo/#", "foo//+", "foo/+/#", "#", "+/#"},
    "foo/bar": {"foo/#", "foo/+", "foo/+/#", "#", "+/+", "+/#", "foo/bar"},
    "/foo/bar": {"#", "/#", "+/#"},
    "$SYS/bar": {"$SYS/#", "$SYS/+"},
    "a/*": {"#", "+/+", "+/#", "a/*"},
    "a/b.c": {"#", "+/+", "+/#"},
}
"""Which of the filters match a key. Source: mosquitto's topic_test.c, and MQTT 5.0, section 4.7."""


@pytest.mark.parametrize("index", CHOICES)
def test_topic_exchange_speaks_mqtt(channel: BlockingChannel, name: str, index: str) -> None:
    """MQTT filters give the same queues with every index; two matches of a key give one copy."""
    filters = sorted(set().union(*MQTT_ROUTES.values()))
    queues = {one: f"{name}.{place}" for place, one in enumerate(filters)}
    declare_queues(channel, queues.values())
    channel.exchange_declare(name, "topic", arguments={"x-topic-dialect": "mqtt", "x-topic-index": index})
    for one, queue in queues.items():
        channel.queue_bind(queue, name, one)
        channel.queue_bind(queue, name, one, {"again": True})
    for key in MQTT_ROUTES:
        channel.basic_publish(name, key, key.encode())
    found = {one: sorted(body.decode() for body in drain(channel, queue)) for one, queue in queues.items()}
    assert found == {one: sorted(key for key, matched in MQTT_ROUTES.items() if one in matched) for one in filters}
    channel.exchange_delete(name)


def test_fanout_exchange_ignores_keys(channel: BlockingChannel, name: str) -> None:
    """A fanout exchange routes every message to every queue once, however often the queue is bound."""
    channel.exchange_declare(name, "fanout")
    queues = [f"{name}.{number}" for number in range(3)]
    declare_queues(channel, queues)
    for queue in queues:
        channel.queue_bind(queue, name, "some key")
        channel.queue_bind(queue, name, "other key")
    channel.basic_publish(name, "", b"1")
    channel.basic_publish(name, "whatever", b"2")
    assert [drain(channel, queue) for queue in queues] == [[b"1", b"2"]] * 3
    channel.queue_unbind(queues[0], name, "some key")
    channel.queue_unbind(queues[1], name, "some key")
    channel.queue_unbind(queues[1], name, "other key")
    channel.basic_publish(name, "", b"3")
    assert [drain(channel, queue) for queue in queues] == [[b"3"], [], [b"3"]]
    channel.exchange_delete(name)


def test_same_key_with_other_arguments_is_another_binding(channel: BlockingChannel, queue: str) -> None:
    """Bindings differ by key and arguments: removing one leaves the other."""
    channel.exchange_declare(queue, "direct")
    channel.queue_bind(queue, queue, "key", {"one": 1})
    channel.queue_bind(queue, queue, "key", {"two": 2})
    channel.queue_unbind(queue, queue, "key", {"one": 1})
    channel.confirm_delivery()
    channel.basic_publish(queue, "key", b"still bound")
    assert drain(channel, queue) == [b"still bound"]
    channel.queue_unbind(queue, queue, "key", {"two": 2})
    channel.basic_publish(queue, "key", b"not bound")
    assert drain(channel, queue) == []
    channel.exchange_delete(queue)


def test_routes_follow_bindings_at_once(channel: BlockingChannel, queue: str, name: str) -> None:
    """A key that was published before is routed anew after every bind, unbind, delete and redeclare."""
    other = f"{name}.other"
    channel.exchange_declare(name, "topic")
    declare_queues(channel, [other])

    def routed(body: bytes) -> tuple[list[bytes], list[bytes]]:
        for _ in range(3):  # often enough for any cache to hold the key
            channel.basic_publish(name, "hot.key", body)
        return drain(channel, queue), drain(channel, other)

    assert routed(b"0") == ([], [])
    channel.queue_bind(queue, name, "hot.*")
    assert routed(b"1") == ([b"1"] * 3, [])
    channel.queue_bind(other, name, "#")
    assert routed(b"2") == ([b"2"] * 3, [b"2"] * 3)
    channel.queue_unbind(queue, name, "hot.*")
    assert routed(b"3") == ([], [b"3"] * 3)
    channel.queue_delete(other)
    channel.queue_declare(other, exclusive=True)
    assert routed(b"4") == ([], [])
    channel.queue_bind(other, name, "hot.key")
    assert routed(b"5") == ([], [b"5"] * 3)
    channel.exchange_delete(name)
    channel.exchange_declare(name, "fanout")
    assert routed(b"6") == ([], [])
    channel.exchange_delete(name)


def test_auto_delete_exchanges_go_with_the_exchange_that_they_led_to(channel: BlockingChannel, name: str) -> None:
    """An auto-delete exchange is deleted with its last target, and so is a source that was bound to it alone."""
    target, *chain = [f"{name}.{number}" for number in range(4)]
    for exchange in (target, *chain):
        channel.exchange_declare(exchange, "fanout", auto_delete=exchange != target)
    for destination, source in pairwise((target, *chain)):
        channel.exchange_bind(destination, source)
    channel.exchange_delete(target)
    for exchange in chain:
        with channel_closed(404, f"NOT_FOUND - no exchange '{exchange}' in vhost '/'"):
            channel.connection.channel().exchange_declare(exchange, passive=True)
