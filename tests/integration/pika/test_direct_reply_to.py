"""Direct reply-to with pika: a request through a queue, the reply straight to the requesting channel."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.pika.conversation import Received

Connect = Callable[..., pika.BlockingConnection]
REPLY_TO = "amq.rabbitmq.reply-to"


def asked(asking: BlockingChannel, queue: str, answering: BlockingChannel) -> pika.BasicProperties:
    """Publish a request and return its properties as the responder gets them."""
    asking.confirm_delivery()
    properties = pika.BasicProperties(reply_to=REPLY_TO, correlation_id="7", headers={"x": [1, "two"]})
    asking.basic_publish("", queue, b"question", properties)
    method, properties, _ = answering.basic_get(queue, auto_ack=True)
    assert method is not None
    return properties


@pytest.fixture
def questions(channel: BlockingChannel, name: str) -> Iterator[str]:
    """Provide a queue that every connection may use."""
    channel.queue_declare(f"{name}.questions")
    yield f"{name}.questions"
    channel.connection.channel().queue_delete(f"{name}.questions")


def test_question_and_answers(channel: BlockingChannel, connect: Connect, questions: str) -> None:
    """Every reply reaches the requesting channel, in order, with its properties."""
    answering = connect().channel()
    received = Received(channel, REPLY_TO, auto_ack=True)
    properties = asked(channel, questions, answering)
    assert properties.reply_to.startswith(REPLY_TO + ".")
    assert (properties.correlation_id, properties.headers) == ("7", {"x": [1, "two"]})
    for number in range(100):
        answering.basic_publish("", properties.reply_to, b"%d" % number)
    assert received.wait(100) == [b"%d" % number for number in range(100)]
    assert set(received.keys) == {properties.reply_to}


def test_a_large_answer(channel: BlockingChannel, connect: Connect, questions: str) -> None:
    """A reply of many frames arrives intact."""
    answering = connect().channel()
    received = Received(channel, REPLY_TO, auto_ack=True)
    properties = asked(channel, questions, answering)
    body = bytes(range(256)) * 2000
    answering.basic_publish("", properties.reply_to, body)
    assert received.wait(1) == [body]
