"""Direct reply-to: answers that go to the requesting channel without a queue."""

from __future__ import annotations

from pamqp import commands

from broker.amqp.content_header import decode_properties
from tests.unit.core.room import Client, Room
from tests.unit.core.session.publishing import declare, publish, ready

Basic, Queue = commands.Basic, commands.Queue
REPLY_TO = "amq.rabbitmq.reply-to"


def consume(client: Client, tag: str = "t") -> None:
    """Start the reply consumer of channel 1."""
    client.call(1, Basic.Consume(queue=REPLY_TO, consumer_tag=tag, no_ack=True), Basic.ConsumeOk)


def ask(room: Room, client: Client) -> str:
    """Publish a request and return its reply-to name."""
    if "questions" not in room.vhost.queues:
        declare(client, "questions")
    publish(client, "questions", reply_to=REPLY_TO, correlation_id="7", headers={"x": 1})
    *_, slot = room.vhost.queues["questions"].level.manager.slots.values()
    assert slot.contents
    properties = decode_properties(slot.contents[-1].header)
    assert (properties.correlation_id, properties.headers) == ("7", {"x": 1})
    return str(properties.reply_to)


def test_an_answer_among_copies(room: Room) -> None:
    """CC may contain a reply-to name, and an answer may have CC copies; each destination gets one."""
    asking, answering = room.enter(), room.enter()
    consume(asking)
    name = ask(room, asking)
    publish(answering, "questions", headers={"CC": [name, name]})
    publish(answering, name, headers={"CC": ["questions"]})
    assert len(list(asking.replies())) == 2
    assert ready(room, "questions") == [3]


def test_a_question_in_a_transaction(room: Room) -> None:
    """A request in a transaction carries the consumer's name, and an answer is sent at the commit."""
    asking, answering = room.enter(), room.enter()
    consume(asking)
    name = ask(room, asking)
    answering.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
    publish(answering, name)
    assert list(asking.replies()) == []
    answering.tell(1, commands.Tx.Commit())
    assert [method.name for _, method in asking.replies()] == ["Basic.Deliver"]
