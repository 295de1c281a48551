"""Direct reply-to with pika: a request through a queue, the reply straight to the requesting channel."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.pika.conversation import Received, channel_closed

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


def test_answers_are_confirmed(channel: BlockingChannel, connect: Connect, questions: str) -> None:
    """A reply is confirmed like any publish, whether its requester still consumes or not."""
    answering = connect().channel()
    Received(channel, REPLY_TO, auto_ack=True)
    name = asked(channel, questions, answering).reply_to
    answering.confirm_delivery()
    answering.basic_publish("", name, b"answer")
    answering.basic_publish("", f"{name[:-1]}~", b"nobody")


def test_an_answer_that_comes_too_late(channel: BlockingChannel, connect: Connect, questions: str) -> None:
    """When the requester has disconnected, a mandatory reply is returned and the name is no longer known."""
    answering = connect().channel()
    received = Received(channel, REPLY_TO, auto_ack=True)
    name = asked(channel, questions, answering).reply_to
    assert answering.queue_declare(name, passive=True).method.consumer_count == 1
    channel.basic_cancel(received.tag)
    answering.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError):
        answering.basic_publish("", name, b"late", mandatory=True)
    with channel_closed(404, f"NOT_FOUND - no queue '{name}' in vhost '/'"):
        answering.queue_declare(name, passive=True)


def test_a_mandatory_answer_in_time(channel: BlockingChannel, connect: Connect, questions: str, oracle: bool) -> None:
    """A delivered mandatory reply is not returned; RabbitMQ 3 both delivers and returns it."""
    answering = connect().channel()
    received = Received(channel, REPLY_TO, auto_ack=True)
    name = asked(channel, questions, answering).reply_to
    returned: list[bytes] = []
    answering.add_on_return_callback(lambda _channel, _method, _properties, body: returned.append(body))
    answering.basic_publish("", name, b"answer", mandatory=True)
    answering.queue_declare(questions, passive=True)
    answering.connection.process_data_events(time_limit=0)
    assert returned == ([b"answer"] if oracle else [])
    assert received.wait(1) == [b"answer"]


def test_asking_without_a_consumer(channel: BlockingChannel, queue: str) -> None:
    """A request from a channel that does not consume replies is refused."""
    channel.confirm_delivery()
    with channel_closed(406, "PRECONDITION_FAILED - fast reply consumer does not exist"):
        channel.basic_publish("", queue, b"question", pika.BasicProperties(reply_to=REPLY_TO))


def test_consuming_with_acks(channel: BlockingChannel) -> None:
    """A reply consumer with acks is refused: there is nothing to ack."""
    with channel_closed(406, "PRECONDITION_FAILED - reply consumer cannot acknowledge"):
        channel.basic_consume(REPLY_TO, lambda *_: None)


def test_consuming_twice(channel: BlockingChannel) -> None:
    """A channel has one reply consumer."""
    channel.basic_consume(REPLY_TO, lambda *_: None, auto_ack=True)
    with channel_closed(406, "PRECONDITION_FAILED - reply consumer already set"):
        channel.basic_consume(REPLY_TO, lambda *_: None, auto_ack=True)
