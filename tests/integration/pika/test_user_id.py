"""The user-id property with pika: a client cannot publish in another user's name."""

from __future__ import annotations

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.pika.conversation import channel_closed


def test_own_name(channel: BlockingChannel, queue: str) -> None:
    """The name of the logged-in user is relayed, every time."""
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", queue, b"body", pika.BasicProperties(user_id="guest"))
    assert channel.basic_get(queue, auto_ack=True)[1].user_id == "guest"


def test_another_name(channel: BlockingChannel, queue: str) -> None:
    """Another name is refused, even when the same publish was accepted without it."""
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"body")
    with channel_closed(
        406, "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'guest'"
    ):
        channel.basic_publish("", queue, b"body", pika.BasicProperties(user_id="somebody"))
