"""Policies: which one applies, its immediate effects, and which are refused, in the words of RabbitMQ or plainly."""

from __future__ import annotations

import re
from typing import Any

import pytest

from broker.core.policy.policy import Policies, Policy, operator_row
from broker.core.policy.policy_definition import KEYS, check_definition, plain_definition
from broker.core.vhost import Vhost

TTL = {"message-ttl": 1000}
NO_DUE_HEADER = (
    "a valid hold-until-header. Must be NAME or NAME:FORMAT, with one of the formats: "
    "iso8601, ms, s, countdown-ms, countdown-s"
)
UNKNOWN = "are not recognised policy settings"


def policy(name: str = "p", pattern: str = ".*", **fields: Any) -> Policy:
    """Return a policy that sets a TTL on everything, unless the fields say otherwise."""
    fields.setdefault("apply_to", "all")
    fields.setdefault("definition", TTL)
    return Policy(name, pattern, **fields)


def test_what_is_there_and_what_comes_later_follow_a_policy(vhost: Vhost) -> None:
    """Setting, replacing and clearing a policy affects existing and later queues at once."""
    before = vhost.queues.declare("q.before")
    other = vhost.queues.declare("other")
    vhost.policies.set(policy(pattern="^q\\."))
    after = vhost.queues.declare("q.after")
    assert [(queue.policy, queue.rules.ttl_ms) for queue in (before, after, other)] == [
        ("p", 1000),
        ("p", 1000),
        (None, None),
    ]
    vhost.policies.set(policy(pattern="^other$", definition={"max-length": 3}))
    assert [(queue.policy, queue.rules.ttl_ms) for queue in (before, after)] == [(None, None)] * 2
    assert (other.policy, other.rules.max_length) == ("p", 3)
    assert vhost.policies.clear("p")
    assert (other.policy, other.rules.max_length) == (None, None)
    assert not vhost.policies.clear("p")


def test_the_highest_priority_holds_alone(vhost: Vhost) -> None:
    """Only the policy of the highest priority applies; the name decides between equal priorities."""
    queue = vhost.queues.declare("q")
    vhost.policies.set(policy("low", definition={"max-length": 1}, priority=-1))
    vhost.policies.set(policy("high", priority=7))
    vhost.policies.set(policy("equal", definition={"max-length": 2}, priority=7))
    assert (queue.policy, queue.rules.max_length, queue.rules.ttl_ms) == ("equal", 2, None)
    assert [found.name for found in vhost.policies.list()] == ["equal", "high", "low"]
    assert vhost.policies.count == 3


def test_no_name_escapes_an_operator_policy(vhost: Vhost) -> None:
    """Names that a pattern takes too long for are within an operator's limit, outside of a policy; others as ever."""
    slow = "(?!amq)([a-z]+-?)+$"  # RE2 knows no lookahead
    vhost.policies.set(policy(pattern=slow))
    vhost.policies.set(policy("op", pattern=slow, definition={"max-length": 5}), operator=True)
    hostile = [vhost.queues.declare("a" * 200 + f"!{number}") for number in range(10)]
    assert {(queue.policy, queue.operator_policy) for queue in hostile} == {(None, "op")}
    for name, found in (("c-d", ("p", "op")), ("C", (None, None)), ("c!", (None, None))):
        queue = vhost.queues.declare(name)
        assert (queue.policy, queue.operator_policy) == found


def test_an_operator_policy_holds_beside_the_policy(vhost: Vhost) -> None:
    """The smallest number among argument, policy and operator policy applies."""
    queue = vhost.queues.declare("q", arguments={"x-message-ttl": 500, "x-max-length": 10})
    vhost.policies.set(policy(definition={"message-ttl": 700, "max-length": 5}))
    vhost.policies.set(policy("op", definition={"message-ttl": 300}), operator=True)
    assert (queue.policy, queue.operator_policy) == ("p", "op")
    assert (queue.rules.ttl_ms, queue.rules.max_length) == (300, 5)
    assert vhost.policies.get("op") is None
    assert vhost.policies.clear("op", operator=True)
    assert (queue.operator_policy, queue.rules.ttl_ms) == (None, 500)


@pytest.mark.parametrize(
    ("apply_to", "found"),
    [
        ("all", {"classic", "quorum", "x"}),
        ("queues", {"classic", "quorum"}),
        ("exchanges", {"x"}),
        ("classic_queues", {"classic"}),
        ("quorum_queues", {"quorum"}),
        ("streams", set()),
    ],
)
def test_a_policy_applies_to_what_it_says(apply_to: str, found: set[str], vhost: Vhost) -> None:
    """A policy applies to queues of a type, to exchanges, or to both."""
    queues = [
        vhost.queues.declare("classic"),
        vhost.queues.declare("quorum", durable=True, arguments={"x-queue-type": "quorum"}),
    ]
    exchange = vhost.exchanges.declare("x", "topic")
    vhost.policies.set(policy(apply_to=apply_to, definition={"max-length": 1, "alternate-exchange": "amq.fanout"}))
    applied = {queue.name for queue in queues if queue.policy}
    assert applied | ({"x"} if exchange.alternate else set()) == found


@pytest.mark.parametrize(
    ("key", "value", "types"),
    [
        ("delivery-limit", 3, {"quorum"}),
        ("dead-letter-strategy", "at-least-once", {"quorum"}),
        ("queue-leader-locator", "balanced", {"quorum"}),
        ("queue-mode", "lazy", {"classic"}),
        ("ha-mode", "all", {"classic"}),
        ("max-in-memory-length", 1, {"classic", "quorum"}),
        ("alternate-exchange", "a", {"classic", "quorum"}),
        ("queue-version", 2, {"classic", "quorum"}),
    ],
)
def test_a_policy_with_a_key_that_a_type_has_no_use_for_is_passed_over(
    key: str, value: object, types: set[str], vhost: Vhost
) -> None:
    """A policy with a key that is invalid for the type is skipped, and the next one applies, as in RabbitMQ."""
    queues = {
        "classic": vhost.queues.declare("classic"),
        "quorum": vhost.queues.declare("quorum", durable=True, arguments={"x-queue-type": "quorum"}),
    }
    vhost.policies.set(policy("p", definition={key: value}, priority=1))
    vhost.policies.set(policy("next"))
    assert {kind for kind, queue in queues.items() if queue.policy == "p"} == types
    assert {kind for kind, queue in queues.items() if queue.policy == "next"} == set(queues) - types


def test_an_alternate_of_a_policy_takes_what_is_unroutable_and_an_argument_goes_before_it(vhost: Vhost) -> None:
    """A cached route to nowhere ends when the policy is set, and the route to the alternate when it is cleared."""
    plain = vhost.exchanges.declare("plain", "direct")
    own = vhost.exchanges.declare("own", "direct", arguments={"alternate-exchange": "amq.topic"})
    queue = vhost.queues.declare("q")
    vhost.bindings.bind("q", "amq.fanout", "")
    routes = [vhost.router.route(plain, "k") for _ in range(3)]
    vhost.policies.set(policy(definition={"alternate-exchange": "amq.fanout"}))
    assert not any(route.live for route in routes)
    assert vhost.router.route(plain, "k").destinations == (queue,)
    assert own.alternate == "amq.topic"
    assert vhost.router.route(vhost.exchanges.declare("late", "direct"), "k").destinations == (queue,)
    routes = [vhost.router.route(plain, "k") for _ in range(3)]
    vhost.policies.clear("p")
    assert not any(route.live for route in routes)
    assert vhost.router.route(plain, "k").destinations == ()


def test_a_policy_comes_back_from_its_row() -> None:
    """A policy is read as it was written; a row without priority and kind is of all, with priority 0."""
    made = policy("a", "^x", apply_to="queues", priority=3)
    row = made.row("v")
    assert row == {
        "vhost": "v", "name": "a", "pattern": "^x", "apply-to": "queues", "definition": TTL, "priority": 3
    }  # fmt: skip
    assert Policy.of("a", row) == made
    assert Policy.of("b", {"pattern": "", "definition": TTL}) == Policy("b", "", "all", TTL, 0)
    assert operator_row(row) == {
        "vhost": "v", "component": "operator_policy", "name": "a",
        "value": {"pattern": "^x", "apply-to": "queues", "definition": TTL, "priority": 3},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ({}, "no policy provided"),
        ([1], "definition must be a dictionary: [1]"),
        ({"message-ttl": "1"}, '<<"1">> is not a valid message TTL'),
        (
            {"dead-letter-exchange": "x", "dead-letter-routing-key": "k" * 256},
            f'<<"{"k" * 256}">> is not a valid dead letter routing key',
        ),
        ({"message-ttl": -1}, "-1 is not a valid message TTL"),
        ({"message-ttl": 1.5}, "1.5 is not a valid message TTL"),
        ({"message-ttl": True}, "true is not a valid message TTL"),
        ({"expires": 0}, "0 is not a valid queue expiry"),
        ({"max-length": -1}, "-1 is not a valid maximum length"),
        ({"max-length-bytes": -1}, "-1 is not a valid maximum length in bytes"),
        ({"max-in-memory-length": -1}, "-1 is not a valid maximum memory in bytes"),
        ({"overflow": "x"}, '<<"x">> is not a valid overflow value'),
        ({"dead-letter-exchange": 1}, "1 is not a valid dead letter exchange name"),
        ({"dead-letter-routing-key": 1}, "1 is not a valid dead letter routing key"),
        ({"dead-letter-strategy": "x"}, '<<"x">> is not a valid dead letter strategy'),
        ({"delivery-limit": "-1"}, '<<"-1">> is not a valid delivery limit'),
        ({"alternate-exchange": 1}, "1 is not a valid alternate exchange name"),
        ({"queue-mode": "x"}, '<<"x">> is not a valid queue-mode value'),
        ({"queue-version": 3}, "3 is not a valid queue-version value"),
        ({"max-age": "x"}, '<<"x">> is not a valid max age'),
        (
            {"delayed-retry-type": "never"},
            '<<"never">> is not a valid delayed retry type. Must be one of: all, failed, returned, disabled',
        ),
        (
            {"delayed-retry-min": 0},
            "0 is not a valid delayed retry minimum delay. Must be a positive integer",
        ),
        (
            {"delayed-retry-max": "1s"},
            '<<"1s">> is not a valid delayed retry maximum delay. Must be a positive integer',
        ),
        ({"delayed-retry-type": "all"}, "delayed-retry-min is required when delayed-retry-type is all"),
        (
            {"delayed-retry-type": "all", "delayed-retry-min": 10, "delayed-retry-max": 5},
            "delayed-retry-max (5) must not be smaller than delayed-retry-min (10)",
        ),
        *(
            ({"hold-until-header": value}, f"{shown} is not {NO_DUE_HEADER}")
            for value, shown in [
                (1, "1"),
                ("", '<<"">>'),
                ("eta:soon", '<<"eta:soon">>'),
                ("a,", '<<"a,">>'),
                (":ms", '<<":ms">>'),
            ]
        ),
        ({"max-priority": 1}, f'[{{<<"max-priority">>,1}}] {UNKNOWN}'),
        ({"nope": "a", "nix": 2}, f'[{{<<"nix">>,2}},{{<<"nope">>,<<"a">>}}] {UNKNOWN}'),
        ({"nope": 1, "message-ttl": "x"}, '<<"x">> is not a valid message TTL'),
    ],
)
def test_a_definition_that_cannot_be_is_refused_in_rabbitmqs_words(definition: Any, text: str) -> None:
    """A wrong value is reported before an unknown key."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its text is compared
        check_definition(definition, operator=False)
    assert str(caught.value) == text


@pytest.mark.parametrize("key", ["alternate-exchange", "dead-letter-exchange", "ha-mode", "hold-until-header"])
def test_an_operator_policy_has_fewer_keys(key: str) -> None:
    """An operator policy may only have limits."""
    with pytest.raises(ValueError, match=UNKNOWN):
        check_definition({key: "a"}, operator=True)
    check_definition({"expires": 1, "max-length": 0, "delivery-limit": 0}, operator=True)
    check_definition({"delayed-retry-type": "all", "delayed-retry-min": 1, "delayed-retry-max": 1}, operator=True)
    check_definition({"delayed-retry-type": "disabled"}, operator=True)


@pytest.mark.parametrize("key", ["ha-mode", "ha-sync-mode", "federation-upstream-set", "shards-per-node"])
def test_keys_of_rabbitmq_that_mean_nothing_here_are_kept(key: str, vhost: Vhost) -> None:
    """RabbitMQ keys without a meaning here are kept, because imported definitions have them."""
    vhost.policies.set(policy(definition={key: "all"}))
    found = vhost.policies.get("p")
    assert found is not None
    assert found.definition == {key: "all"}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"pattern": "("}, "pattern should be regular expression but is invalid: "),
        ({"pattern": 1}, "pattern should be a binary but was 1"),
        ({"priority": "1"}, 'priority should be a number, actually was <<"1">>'),
        ({"priority": None}, "priority should be a number, actually was null"),
        ({"apply_to": "streamers"}, "apply-to 'streamers' unrecognised; should be "),
    ],
)
def test_other_fields_that_cannot_be_are_refused(fields: dict[str, Any], text: str) -> None:
    """Wrong fields are refused before anything changes."""
    policies = Policies(lambda: None)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its text is compared
        policies.set(policy(**fields))
    assert str(caught.value).startswith(text)
    assert policies.list() == []


def test_sizes_and_times_take_units() -> None:
    """The result is RabbitMQ's form."""
    given = {"message-ttl": "7d", "expires": "30m", "max-length-bytes": "10GB", "max-length": 5}
    plain = plain_definition(given, operator=False)
    assert plain == {**given, "message-ttl": 604_800_000, "expires": 1_800_000, "max-length-bytes": 10**10}
    check_definition(plain, operator=False)
    assert plain_definition({"message-ttl": 60000}, operator=True) == {"message-ttl": 60000}


@pytest.mark.parametrize(
    ("definition", "operator", "reason"),
    [
        ({}, False, "a policy needs at least one key, such as max-length"),
        ({"max-lenght": 1}, False, "a policy has no key 'max-lenght'; did you mean max-length?"),
        ({"alternate-exchange": "x"}, True, "an operator policy has no key 'alternate-exchange'; there are message-"),
        ({"max-length": "a"}, False, "'max-length' should be a whole number from 0, not 'a'"),
        ({"max-length": True}, False, "'max-length' should be a whole number from 0, not true"),
        ({"message-ttl": "soon"}, False, "'message-ttl' should be a number of milliseconds, or a time such as 30s or"),
        ({"max-length-bytes": [1]}, True, "'max-length-bytes' should be a number of bytes, or a size such as 512MiB"),
        ({"overflow": "x"}, False, "'overflow' should be drop-head or reject-publish or reject-publish-dlx, not 'x'"),
        (
            {"delayed-retry-min": "soon"},
            False,
            "'delayed-retry-min' should be a number of milliseconds, or a time such",
        ),
        (
            {"delayed-retry-type": "x"},
            True,
            "'delayed-retry-type' should be all or failed or returned or disabled, not",
        ),
        ({"hold-until-header": "eta:x"}, False, "'hold-until-header' should be the name of a header, alone or with a"),
        ({"dead-letter-exchange": 1}, False, "'dead-letter-exchange' should be text, not 1"),
    ],
)
def test_the_reason_is_plain(definition: dict[str, Any], operator: bool, reason: str) -> None:
    """A reason names the key and what its value should be, and no term of Erlang."""
    with pytest.raises(ValueError, match=re.escape(reason)):
        plain_definition(definition, operator=operator)


def test_every_key_says_what_it_takes() -> None:
    """Only keys of RabbitMQ that have no effect here take anything."""
    free = {key for key, meaning in KEYS.items() if meaning == "anything"}
    without = ("ha-", "federation-", "queue-master", "shards", "routing-key", "remote-")
    assert all(key.startswith(without) for key in free)
