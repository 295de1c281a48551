"""Redundant bindings of a topology."""

from __future__ import annotations

from itertools import product
from random import Random

from broker.pipeline.report.broker_sections import redundant_bindings
from broker.pipeline.routes.topology import RoutedBinding, RoutedExchange, Topology
from broker.routing.pattern import split_words
from tests.property.topic_reference import matches


def topology(*bindings: tuple[str, str, str], kind: str = "topic", **arguments: str) -> Topology:
    """Return a topology of (exchange, key, queue) whose exchanges have one type."""
    names = sorted({exchange for exchange, _, _ in bindings})
    return Topology(
        tuple(RoutedExchange("/", name, kind, arguments) for name in names),
        tuple(("/", queue) for queue in sorted({queue for _, _, queue in bindings})),
        tuple(RoutedBinding("/", exchange, key, queue) for exchange, key, queue in bindings),
    )


def told(made: Topology) -> list[tuple[str, str]]:
    """Return pairs of keys: the redundant one and the one that covers it."""
    return [(binding.key, other.key) for binding, other in redundant_bindings(made)]


def test_a_binding_is_redundant_beside_a_wider_one_to_the_same_place() -> None:
    """A binding is redundant only beside a wider one of the same exchange and queue."""
    assert told(topology(("x", "a.#", "q"), ("x", "a.b", "q"), ("x", "a.*", "r"), ("y", "a.b", "q"))) == [
        ("a.b", "a.#")
    ]


def test_of_two_that_mean_the_same_the_first_stays() -> None:
    """One of two equivalent patterns is redundant, not both."""
    assert told(topology(("x", "#.*", "q"), ("x", "*.#", "q"), ("x", "*.#.#", "q"))) == [
        ("*.#", "#.*"),
        ("*.#.#", "#.*"),
    ]


def test_a_fanout_exchange_needs_one_binding_to_a_place() -> None:
    """A fanout exchange needs one binding per destination, because it ignores keys."""
    assert told(topology(("x", "a", "q"), ("x", "b", "q"), ("x", "a", "r"), kind="fanout")) == [("b", "a")]


def test_other_exchanges_have_none() -> None:
    """Bindings of direct and headers exchanges are never redundant."""
    for kind in ("direct", "headers"):
        assert told(topology(("x", "#", "q"), ("x", "a", "q"), kind=kind)) == []


def test_the_dialect_of_the_exchange_decides() -> None:
    """In the MQTT dialect slashes separate and a plus is a level."""
    keys = (("x", "a/#", "q"), ("x", "a/+/c", "q"), ("x", "a.b", "q"))
    assert told(topology(*keys, **{"x-topic-dialect": "mqtt"})) == [("a/+/c", "a/#")]


def test_without_redundant_bindings_the_same_messages_arrive() -> None:
    """Removing all redundant bindings at once changes no route, and leaves no redundant one."""
    random = Random(3)
    words = ["a", "b", "*", "#"]
    keys = [[*key] for length in range(5) for key in product("ab", repeat=length)]
    found = 0
    for _ in range(60):
        patterns = {".".join(random.choices(words, k=random.randrange(1, 5))) for _ in range(6)}
        made = topology(*(("x", pattern, "q") for pattern in sorted(patterns)))
        gone = {binding.key for binding, _ in redundant_bindings(made)}
        found += len(gone)
        left = [split_words(pattern) for pattern in patterns - gone]
        for key in keys:
            before = any(matches(split_words(pattern), key) for pattern in patterns)
            assert any(matches(pattern, key) for pattern in left) == before
        assert all(other.key not in gone for _, other in redundant_bindings(made))
        assert told(topology(*(("x", pattern, "q") for pattern in sorted(patterns - gone)))) == []
    assert found > 30
