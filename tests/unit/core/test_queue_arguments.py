"""The arguments of a new queue: accepted values, RabbitMQ's texts for refused ones, and the default type of a vhost."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from broker.amqp.errors import ChannelError
from broker.core.durable_topology import restore
from broker.core.queue.queue import Queue
from broker.core.queue.queue_arguments import check_default_type, default_type, ignored_default_type
from broker.core.queue.rules import NUMBER_MAX
from tests.unit.core.room import Room

TEN_YEARS_MS = 315_360_000_000
QUORUM = {"x-queue-type": "quorum"}


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


def test_a_priority_queue_takes_a_number_per_level(room: Room) -> None:
    """A priority queue takes one number per level, and the next queue's number follows them."""
    declare({"x-max-priority": 9}, room)
    assert room.vhost.queues.declare("next").number == 11
    again = Room()
    restore(again.vhost, room.journal)
    assert again.vhost.queues.next_number == 11


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
def test_what_a_queue_of_its_type_cannot_have_is_not_compared(
    before: dict[str, Any], after: dict[str, Any], room: Room
) -> None:
    """Arguments that are invalid for the queue type are neither compared nor checked in a repeated declare."""
    queue = declare(before, room)
    assert declare(after, room) is queue


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, None),
        ({"default_queue_type": "quorum"}, "quorum"),
        ({"default_queue_type": "rabbit_quorum_queue"}, "quorum"),
        ({"metadata": {"default_queue_type": "quorum"}}, "quorum"),
        ({"default_queue_type": "classic", "metadata": {"default_queue_type": "quorum"}}, "classic"),
        ({"default_queue_type": "undefined", "metadata": {"default_queue_type": "quorum"}}, "quorum"),
        ({"default_queue_type": "undefined"}, None),
        ({"default_queue_type": None, "metadata": None}, None),
    ],
)
def test_facts_of_rabbitmq_name_the_type(facts: dict[str, Any], expected: str | None) -> None:
    """The type is read beside the vhost's name or in its metadata; `undefined` means none."""
    assert default_type(facts) == expected
    assert ignored_default_type(facts) is None


@pytest.mark.parametrize(
    ("said", "reason"),
    [("stream", "streams are not supported"), ("lazy", "it is classic or quorum"), ([1], "it is classic or quorum")],
)
def test_type_that_is_not_there_has_no_effect_and_a_reason(said: Any, reason: str) -> None:
    """An unavailable type has no effect, and the reason is reported."""
    facts = {"default_queue_type": said}
    assert default_type(facts) is None
    assert ignored_default_type(facts) == f"default_queue_type {said!r} has no effect: {reason}"


def test_operator_is_refused_what_is_not_there() -> None:
    """An operator who sets an unavailable type is refused; `undefined` is accepted as none."""
    assert [check_default_type(name) for name in (None, "undefined", "quorum")] == [None, None, "quorum"]
    with pytest.raises(ValueError, match=r"^default_queue_type cannot be 'stream': streams are not supported$"):
        check_default_type("stream")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"durable": True}, {"x-queue-type": "quorum"}),
        ({"durable": True, "arguments": {"x-max-length": 1}}, {"x-max-length": 1, "x-queue-type": "quorum"}),
        ({"durable": True, "arguments": {"x-queue-type": "classic"}}, {"x-queue-type": "classic"}),
        ({}, {}),
        ({"durable": True, "exclusive": True}, {}),
        ({"durable": True, "auto_delete": True}, {}),
    ],
)
def test_declare_without_a_type_has_the_default_where_it_fits(
    fields: dict[str, Any], expected: dict[str, Any], room: Room
) -> None:
    """A quorum queue is durable, not exclusive and not auto-delete; the same declare again is equivalent."""
    room.vhost.default_queue_type = "quorum"
    client = room.enter()
    for _ in range(2):
        client.call(1, commands.Queue.Declare(queue="q", **fields), commands.Queue.DeclareOk)
    assert room.vhost.queues["q"].arguments == expected


def test_passive_declare_finds_any_type(room: Room) -> None:
    """A passive declare compares no type; an active declare of a classic queue now asks for a quorum queue."""
    room.vhost.queues.declare("q", durable=True)
    room.vhost.default_queue_type = "quorum"
    client = room.enter()
    client.call(1, commands.Queue.Declare(queue="q", passive=True), commands.Queue.DeclareOk)
    assert client.refused(commands.Queue.Declare(queue="q", durable=True)) == (
        "channel 406 PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': "
        "received 'quorum' but current is 'classic'"
    )


def test_queue_that_the_broker_names_cannot_have_the_default(room: Room) -> None:
    """A queue that the broker names does not get the default, because RabbitMQ's quorum queues need a name."""
    room.vhost.default_queue_type = "quorum"
    assert room.enter().refused(commands.Queue.Declare(queue="", durable=True)) == (
        "channel 406 PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue"
    )
