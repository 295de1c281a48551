"""The rules of a queue: arguments, policy and operator policy, merged as RabbitMQ does."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.queue.rules import DROP_HEAD, PLAIN, DelayedRetry, QueueRules, merged_definitions, queue_rules


def test_nothing_said_is_plain() -> None:
    """A queue without arguments and policies has no limits."""
    assert queue_rules({}) is PLAIN
    assert queue_rules({"x-queue-mode": "lazy"}) == PLAIN
    assert PLAIN.overflow == DROP_HEAD


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("message-ttl", "ttl_ms"),
        ("expires", "expires_ms"),
        ("max-length", "max_length"),
        ("max-length-bytes", "max_bytes"),
        ("delivery-limit", "delivery_limit"),
    ],
)
def test_of_numbers_the_least_holds(name: str, field: str) -> None:
    """The least number applies, whether client, policy or operator sets it."""
    for argument, policy, operator in ((3, 7, 9), (9, 3, 7), (7, 9, 3)):
        rules = queue_rules({f"x-{name}": argument}, {name: policy}, {name: operator})
        assert getattr(rules, field) == 3
    assert getattr(queue_rules({}, {name: 5}), field) == 5


def test_a_clients_text_holds_before_the_policys() -> None:
    """The client's dead-letter exchange and overflow apply; the policy sets those that the client left out."""
    policy = {"dead-letter-exchange": "policy", "dead-letter-routing-key": "key", "overflow": "reject-publish"}
    rules = queue_rules({"x-dead-letter-exchange": "own"}, policy)
    assert (rules.dead_letter_exchange, rules.dead_letter_key, rules.overflow) == ("own", "key", "reject-publish")


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        ({"x-queue-type": "quorum"}, 20),
        ({"x-queue-type": "quorum", "x-delivery-limit": 3}, 3),
        ({"x-queue-type": "quorum", "x-delivery-limit": -1}, None),
        ({"x-queue-type": "classic"}, None),
    ],
)
def test_a_quorum_queue_has_a_delivery_limit_by_itself(arguments: dict[str, Any], limit: int | None) -> None:
    """A quorum queue has a delivery limit of 20 unless another is given; -1 is none; a classic queue has none."""
    assert queue_rules(arguments).delivery_limit == limit


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ((None, -1, None), None),
        ((5, -1, None), 5),
        ((-1, 7, None), 7),
        ((-1, -1, 4), 4),
        ((3, 7, 4), 3),
        ((-1, -1, -1), None),
    ],
)
def test_no_delivery_limit_gives_way_to_a_limit(given: tuple[int | None, ...], limit: int | None) -> None:
    """As in RabbitMQ 4, -1 is no limit, which another limit replaces; of several limits the least counts."""
    argument, policy, operator = given
    arguments = {"x-queue-type": "quorum"} | ({} if argument is None else {"x-delivery-limit": argument})
    definitions = [{} if value is None else {"delivery-limit": value} for value in (policy, operator)]
    assert queue_rules(arguments, *definitions).delivery_limit == limit


def test_levels_and_the_single_active_consumer_are_the_declarations() -> None:
    """A policy cannot change the priority levels or the single active consumer."""
    rules = queue_rules({"x-max-priority": 4, "x-single-active-consumer": True}, {"max-priority": 9})
    assert rules == QueueRules(max_priority=4, single_active=True)


RETRY: dict[str, Any] = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 10, "x-delayed-retry-max": 50}


@pytest.mark.parametrize(
    ("arguments", "policy", "operator", "retry"),
    [
        (RETRY, {}, {}, DelayedRetry("all", 10, 50)),
        ({**RETRY, "x-delayed-retry-max": None}, {}, {}, DelayedRetry("all", 10, 10)),
        (RETRY, {"delayed-retry-type": "failed"}, {}, DelayedRetry("failed", 10, 50)),
        (RETRY, {"delayed-retry-type": "disabled"}, {}, None),
        (RETRY, {"delayed-retry-min": 5, "delayed-retry-max": 90}, {}, DelayedRetry("all", 5, 50)),
        ({}, {"delayed-retry-type": "returned", "delayed-retry-min": 5}, {}, DelayedRetry("returned", 5, 5)),
        (
            {},
            {"delayed-retry-type": "all", "delayed-retry-min": 5, "delayed-retry-max": 90},
            {"delayed-retry-type": "failed", "delayed-retry-min": 7, "delayed-retry-max": 70},
            DelayedRetry("failed", 7, 70),
        ),
        *(({**RETRY, "x-delayed-retry-min": wrong}, {}, {}, None) for wrong in (0, -1, "a", True, None)),
        *(({**RETRY, "x-delayed-retry-type": wrong}, {}, {}, None) for wrong in ("never", "disabled", 1, True)),
        ({**RETRY, "x-delayed-retry-max": "a"}, {}, {}, DelayedRetry("all", 10, 10)),
    ],
)
def test_a_delayed_retry_is_that_of_policy_and_arguments(
    arguments: dict[str, Any], policy: dict[str, Any], operator: dict[str, Any], retry: DelayedRetry | None
) -> None:
    """The policy's type, and the lesser numbers; of two policies the greater minimum. What is invalid says nothing."""
    assert queue_rules(arguments, policy, operator).retry == retry
    if operator:
        merged = merged_definitions(policy, operator)
        assert (merged["delayed-retry-min"], merged["delayed-retry-max"]) == (7, 70)
