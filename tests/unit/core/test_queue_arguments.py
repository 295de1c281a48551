"""The arguments of a new queue: accepted values, and RabbitMQ's texts for refused ones."""

from __future__ import annotations

from typing import Any

import pytest

from broker.amqp.errors import ChannelError
from broker.core.durable_topology import restore
from broker.core.queue.queue import Queue
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


def test_a_priority_queue_takes_a_number_per_level() -> None:
    """A priority queue takes one number per level, and the next queue's number follows them."""
    room = Room()
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
def test_what_a_queue_of_its_type_cannot_have_is_not_compared(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Arguments that are invalid for the queue type are neither compared nor checked in a repeated declare."""
    room = Room()
    queue = declare(before, room)
    assert declare(after, room) is queue
