"""The arguments of a new queue: accepted values, and RabbitMQ's texts for refused ones."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from broker.amqp.errors import ChannelError
from broker.core.durable_topology import restore
from broker.core.queue.queue import Queue
from broker.core.queue.rules import NUMBER_MAX
from tests.unit.core.room import Room

TEN_YEARS_MS = 315_360_000_000
QUORUM = {"x-queue-type": "quorum"}
NUMBERS = ("x-expires", "x-message-ttl", "x-max-length", "x-max-length-bytes", "x-max-priority")
TEXTS = ("x-dead-letter-routing-key", "x-overflow")
WRONG_TYPES = [
    (True, "bool"),
    ("10", "longstr"),
    (1.5, "double"),
    (Decimal("1.5"), "decimal"),
    (datetime(2026, 1, 1, tzinfo=UTC), "timestamp"),
    ({}, "table"),
    ([], "array"),
    (None, "void"),
]


def declare(arguments: dict[str, Any], room: Room | None = None) -> Queue:
    """Declare a durable queue with arguments."""
    return (room or Room()).vhost.queues.declare("q", durable=True, arguments=arguments)


def refused(arguments: dict[str, Any]) -> str:
    """Return the text after `invalid arg 'x' for queue`, where x is the last argument."""
    room = Room()
    with pytest.raises(ChannelError) as caught:
        declare(arguments, room)
    assert not room.vhost.queues
    assert room.journal == []
    head = f"PRECONDITION_FAILED - invalid arg '{list(arguments)[-1]}' for queue 'q' in vhost '/'"
    assert caught.value.reply_text.startswith(head)
    return caught.value.reply_text.removeprefix(head)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(("value", "type_"), WRONG_TYPES)
def test_a_number_has_to_be_an_integer(name: str, value: object, type_: str) -> None:
    """A number must be an integer: true and a quoted number are refused."""
    assert refused({name: value}) == f': "expected integer, got {type_}"'


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(("value", "type_"), [pair for pair in WRONG_TYPES if pair[1] != "longstr"])
def test_a_text_has_to_be_a_text(name: str, value: object, type_: str) -> None:
    """A text argument of another type is refused with RabbitMQ's name of the type."""
    assert refused({name: value}) == f": {{unacceptable_type,{type_}}}"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x-expires": 0}, ": {value_zero,0}"),
        ({"x-expires": -1}, ": {value_negative,-1}"),
        ({"x-expires": TEN_YEARS_MS + 1}, f": {{value_too_large,{TEN_YEARS_MS + 1}}}"),
        ({"x-message-ttl": -1}, ": {value_negative,-1}"),
        ({"x-message-ttl": TEN_YEARS_MS + 1}, f": {{value_too_large,{TEN_YEARS_MS + 1}}}"),
        ({"x-max-length": -1}, ": {value_negative,-1}"),
        ({"x-max-length-bytes": -1}, ": {value_negative,-1}"),
        ({"x-max-priority": -1}, ": {value_negative,-1}"),
        ({"x-max-priority": 256}, ": {max_value_exceeded,256}"),
        ({"x-overflow": "drop-tail"}, ": invalid_overflow"),
        ({"x-dead-letter-routing-key": "k"}, ": routing_key_but_no_dlx_defined"),
        (
            {"x-dead-letter-exchange": "x", "x-dead-letter-routing-key": "\u00e9" * 128},
            ': "expected UTF-8 of at most 255 bytes"',
        ),
        (
            {"x-dead-letter-exchange": "x", "x-dead-letter-routing-key": b"\xff"},
            ': "expected UTF-8 of at most 255 bytes"',
        ),
        ({"x-single-active-consumer": 1}, ": {unacceptable_type,signedint}"),
        ({"x-single-active-consumer": "true"}, ": {unacceptable_type,longstr}"),
        ({"x-queue-version": 0}, ": \"unsupported queue version '0'\""),
        ({"x-queue-version": -1}, ": {value_negative,-1}"),
        ({**QUORUM, "x-dead-letter-strategy": "never"}, ": invalid_dlx_strategy"),
        ({**QUORUM, "x-dead-letter-strategy": 1}, ": {unacceptable_type,signedint}"),
        ({**QUORUM, "x-quorum-initial-group-size": 0}, ": {value_zero,0}"),
        ({**QUORUM, "x-queue-leader-locator": "nearest"}, ": invalid_queue_locator_arg"),
        ({**QUORUM, "x-max-in-memory-length": -1}, ": {value_negative,-1}"),
        ({**QUORUM, "x-delivery-limit": "3"}, ': "expected integer, got longstr"'),
        ({**QUORUM, "x-max-priority": 5}, " of queue type rabbit_quorum_queue"),
        ({**QUORUM, "x-max-age": "1h"}, " of queue type rabbit_quorum_queue"),
        ({"x-delivery-limit": 3}, " of queue type rabbit_classic_queue"),
        ({"x-dead-letter-strategy": "at-most-once"}, " of queue type rabbit_classic_queue"),
        ({"x-quorum-initial-group-size": 3}, " of queue type rabbit_classic_queue"),
        ({"x-max-in-memory-length": 3}, " of queue type rabbit_classic_queue"),
        ({"x-max-age": "1h"}, " of queue type rabbit_classic_queue"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_rabbitmqs_reason(arguments: dict[str, Any], reason: str) -> None:
    """A refused value has RabbitMQ's reason; nothing is declared or journalled."""
    assert refused(arguments) == reason


def test_a_dead_letter_exchange_of_a_wrong_type_has_words_of_its_own() -> None:
    """RabbitMQ checks the dead-letter exchange before all other arguments."""
    with pytest.raises(ChannelError) as caught:
        declare({"x-expires": 0, "x-dead-letter-exchange": 1})
    assert caught.value.reply_text == (
        "PRECONDITION_FAILED - invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'"
    )


def test_of_several_faults_the_first_of_rabbitmqs_order_is_told() -> None:
    """An argument that is invalid for the queue type is reported before a wrong value."""
    assert refused({"x-message-ttl": "x", "x-expires": "x"}) == ': "expected integer, got longstr"'
    assert refused({"x-expires": "x", **QUORUM, "x-max-priority": 300}) == " of queue type rabbit_quorum_queue"


def test_good_values_become_the_rules_of_the_queue() -> None:
    """Zero is a limit, ten years are a valid time, and the largest number leaves room for a sum in 64 bits."""
    rules = declare(
        {
            "x-message-ttl": 0,
            "x-expires": TEN_YEARS_MS,
            "x-max-length": 0,
            "x-max-length-bytes": 2**63 - 1,
            "x-overflow": "reject-publish-dlx",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
            "x-max-priority": 255,
            "x-single-active-consumer": True,
        }
    ).rules
    assert (rules.ttl_ms, rules.expires_ms, rules.max_length, rules.max_bytes) == (0, TEN_YEARS_MS, 0, NUMBER_MAX)
    assert (rules.overflow, rules.dead_letter_exchange, rules.dead_letter_key) == ("reject-publish-dlx", "", "dead")
    assert (rules.max_priority, rules.single_active) == (255, True)


def test_a_priority_queue_takes_a_number_per_level() -> None:
    """A priority queue takes one number per level, and the next queue's number follows them."""
    room = Room()
    declare({"x-max-priority": 9}, room)
    assert room.vhost.queues.declare("next").number == 11
    again = Room()
    restore(again.vhost, room.journal)
    assert again.vhost.queues.next_number == 11


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("x-expires", 100_000, 200_000),
        ("x-message-ttl", 1000, 2000),
        ("x-max-length", 1, 2),
        ("x-max-length-bytes", 1, 2),
        ("x-max-priority", 1, 2),
        ("x-overflow", "drop-head", "reject-publish"),
        ("x-dead-letter-exchange", "a", "b"),
        ("x-queue-mode", "lazy", "default"),
        ("x-queue-master-locator", "min-masters", "random"),
    ],
)
def test_what_changes_a_queue_is_compared(name: str, first: object, second: object) -> None:
    """A repeated declare differs by another value, an additional argument or a missing one."""
    head = f"PRECONDITION_FAILED - inequivalent arg '{name}' for queue 'q' in vhost '/': received "
    kind = "signedint" if isinstance(first, int) else "longstr"
    for before, after, text in (
        ({name: first}, {name: second}, f"'{second}' but current is '{first}'"),
        ({name: first}, {}, f"none but current is the value '{first}' of type '{kind}'"),
        ({}, {name: first}, f"the value '{first}' of type '{kind}' but current is none"),
    ):
        room = Room()
        declare(before, room)
        with pytest.raises(ChannelError) as caught:
            declare(after, room)
        assert caught.value.reply_text == head + text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"x-delivery-limit": 1}),
        ({}, {"x-dead-letter-strategy": "at-most-once"}),
        (QUORUM, {**QUORUM, "x-max-priority": 1}),
        (QUORUM, {**QUORUM, "x-queue-mode": "lazy"}),
        ({}, {"x-unknown": 1}),
    ],
)
def test_what_a_queue_of_its_type_cannot_have_is_not_compared(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Arguments that are invalid for the queue type are neither compared nor checked in a repeated declare."""
    room = Room()
    queue = declare(before, room)
    assert declare(after, room) is queue
