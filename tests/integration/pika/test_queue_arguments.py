"""Queue arguments with pika: refused with RabbitMQ's text, compared, stored."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.pika.conversation import channel_closed

INVALID = "PRECONDITION_FAILED - invalid arg '{}' for queue '{}' in vhost '/'"
QUORUM = {"x-queue-type": "quorum"}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"x-expires": 0}, ": {value_zero,0}"),
    ({"x-expires": "1"}, ': "expected integer, got longstr"'),
    ({"x-message-ttl": -1}, ": {value_negative,-1}"),
    ({"x-message-ttl": 315_360_000_001}, ": {value_too_large,315360000001}"),
    ({"x-max-length": True}, ': "expected integer, got bool"'),
    ({"x-max-length-bytes": -1}, ": {value_negative,-1}"),
    ({"x-max-priority": 256}, ": {max_value_exceeded,256}"),
    ({"x-overflow": "drop-tail"}, ": invalid_overflow"),
    ({"x-overflow": 1}, ": {unacceptable_type,signedint}"),
    ({"x-dead-letter-routing-key": "k"}, ": routing_key_but_no_dlx_defined"),
    ({"x-single-active-consumer": "true"}, ": {unacceptable_type,longstr}"),
    ({"x-queue-version": 3}, ": \"unsupported queue version '3'\""),
    ({"x-delivery-limit": 3}, " of queue type rabbit_classic_queue"),
    ({**QUORUM, "x-max-priority": 5}, " of queue type rabbit_quorum_queue"),
    ({**QUORUM, "x-dead-letter-strategy": "never"}, ": invalid_dlx_strategy"),
    ({**QUORUM, "x-quorum-initial-group-size": 0}, ": {value_zero,0}"),
]


@pytest.mark.parametrize(("arguments", "reason"), REFUSED)
def test_an_argument_that_cannot_be_is_refused(
    channel: BlockingChannel, name: str, arguments: dict[str, Any], reason: str
) -> None:
    """An invalid argument is refused with 406 and RabbitMQ's reason, and no queue is declared."""
    argument = list(arguments)[-1]
    with channel_closed(406, INVALID.format(argument, name) + reason):
        channel.queue_declare(name, durable=True, arguments=arguments)
    with channel_closed(404, f"NOT_FOUND - no queue '{name}' in vhost '/'"):
        channel.connection.channel().queue_declare(name, passive=True)


def test_good_arguments_are_kept_and_compared(connection: pika.BlockingConnection, name: str) -> None:
    """All arguments work together; a redeclare with equal arguments succeeds, one with different arguments fails."""
    arguments: dict[str, Any] = {
        "x-message-ttl": 60_000,
        "x-expires": 600_000,
        "x-max-length": 1000,
        "x-max-length-bytes": 1 << 30,
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "amq.fanout",
        "x-dead-letter-routing-key": "dead",
        "x-max-priority": 9,
        "x-single-active-consumer": True,
        "x-queue-mode": "lazy",
        "x-unknown": "kept",
    }
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True, arguments=arguments)
    channel.queue_declare(name, exclusive=True, arguments={**arguments, "x-unknown": "whatever"})
    text = f"PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue '{name}' in vhost '/': "
    with channel_closed(406, text + "received '1001' but current is '1000'"):
        channel.queue_declare(name, exclusive=True, arguments={**arguments, "x-max-length": 1001})


def test_a_quorum_queue_is_a_durable_queue(channel: BlockingChannel, name: str) -> None:
    """A quorum queue accepts its own arguments; properties that it cannot have are refused."""
    arguments = {**QUORUM, "x-delivery-limit": 3, "x-quorum-initial-group-size": 1, "x-max-in-memory-length": 5}
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.queue_delete(name)
    with channel_closed(406, f"PRECONDITION_FAILED - invalid property 'non-durable' for queue '{name}' in vhost '/'"):
        channel.queue_declare(name, arguments=QUORUM)
