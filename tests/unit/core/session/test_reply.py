"""Direct reply-to: answers that go to the requesting channel without a queue."""

from __future__ import annotations

import pytest
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


@pytest.mark.parametrize(
    ("methods", "text"),
    [
        ([Basic.Consume(queue=REPLY_TO)], "reply consumer cannot acknowledge"),
        ([Basic.Consume(queue=REPLY_TO, no_ack=True)] * 2, "reply consumer already set"),
        (
            [Basic.Consume(queue=REPLY_TO, no_ack=True), Basic.Consume(queue=REPLY_TO)],
            "reply consumer cannot acknowledge",
        ),
    ],
)
def test_consuming_that_is_refused(methods: list[commands.Basic.Consume], text: str) -> None:
    """A channel has at most one reply consumer, and that one must not ack."""
    client = Room().enter()
    for method in methods[:-1]:
        client.call(1, method, Basic.ConsumeOk)
    assert client.refused(methods[-1]) == f"channel 406 PRECONDITION_FAILED - {text}"


def test_a_tag_in_use() -> None:
    """A tag that another consumer of the channel uses is refused."""
    client = Room().enter()
    declare(client, "q")
    client.call(1, Basic.Consume(queue="q", consumer_tag="t"), Basic.ConsumeOk)
    close = client.refused(Basic.Consume(queue=REPLY_TO, consumer_tag="t", no_ack=True))
    assert close == "connection 530 NOT_ALLOWED - attempt to reuse consumer tag 't'"


def test_an_answer_goes_to_who_asked() -> None:
    """The reply-to name leads to the requesting channel, and each channel has its own name."""
    room = Room()
    asking, other, answering = room.enter(), room.enter(), room.enter()
    consume(asking)
    consume(other)
    name, other_name = ask(room, asking), ask(room, other)
    assert name.startswith(REPLY_TO + ".")
    assert name != other_name
    assert ask(room, asking) == name
    assert publish(answering, name, b"answer", correlation_id="7") == []
    ((channel, deliver),) = asking.replies()
    assert isinstance(deliver, Basic.Deliver)
    assert (channel, deliver.consumer_tag, deliver.delivery_tag, deliver.redelivered) == (1, "t", 1, False)
    assert (deliver.exchange, deliver.routing_key) == ("", name)
    assert list(other.replies()) == []
    assert ready(room, "questions") == [3]


def test_an_answer_is_routed_or_returned() -> None:
    """A mandatory answer is returned only when the requesting channel is gone."""
    room = Room()
    asking, answering = room.enter(), room.enter()
    consume(asking)
    name = ask(room, asking)
    assert publish(answering, name, mandatory=True) == []
    assert [method.name for _, method in asking.replies()] == ["Basic.Deliver"]
    assert publish(answering, name + "x", mandatory=True) == ["Basic.Return"]
    assert publish(answering, name, exchange="amq.direct", mandatory=True) == ["Basic.Return"]
    asking.call(1, Basic.Cancel(consumer_tag="t"), Basic.CancelOk)
    assert publish(answering, name, mandatory=True) == ["Basic.Return"]
    assert publish(answering, name) == []
    consume(asking)
    assert ask(room, asking) != name
    assert publish(answering, name, mandatory=True) == ["Basic.Return"]


def test_an_answer_among_copies() -> None:
    """CC may contain a reply-to name, and an answer may have CC copies; each destination gets one."""
    room = Room()
    asking, answering = room.enter(), room.enter()
    consume(asking)
    name = ask(room, asking)
    publish(answering, "questions", headers={"CC": [name, name]})
    publish(answering, name, headers={"CC": ["questions"]})
    assert len(list(asking.replies())) == 2
    assert ready(room, "questions") == [3]


@pytest.mark.parametrize("passive", [False, True])
def test_declaring_tells_whether_somebody_waits(passive: bool) -> None:
    """queue.declare of the name is answered as for a queue with a consumer, or with 404, and creates nothing."""
    room = Room()
    asking, answering = room.enter(), room.enter()
    consume(asking)
    for name in (REPLY_TO, ask(room, asking)):
        ok = answering.call(1, Queue.Declare(queue=name, passive=passive), Queue.DeclareOk)
        assert (ok.queue, ok.message_count, ok.consumer_count) == (name, 0, 1)
    gone = REPLY_TO + ".x"
    text = f"channel 404 NOT_FOUND - no queue '{gone}' in vhost '/'"
    assert answering.refused(Queue.Declare(queue=gone, passive=passive)) == text
    assert set(room.vhost.queues) == {"questions"}


def test_the_name_is_no_queue() -> None:
    """A reply-to name cannot be bound or fetched from."""
    room = Room()
    client = room.enter()
    consume(client)
    name = ask(room, client)
    client.open_channel(2)
    text = f"channel 404 NOT_FOUND - no queue '{name}' in vhost '/'"
    assert client.refused(Queue.Bind(queue=name, exchange="amq.direct"), 2) == text
    client.tell(2, commands.Channel.CloseOk())
    client.open_channel(2)
    assert client.refused(Basic.Get(queue=name), 2) == text


def test_the_name_goes_with_the_channel() -> None:
    """A name ends with its channel or connection."""
    room = Room()
    first, second = room.enter(), room.enter()
    consume(first)
    consume(second)
    first.call(1, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
    second.machine.lost()
    assert not room.vhost.replies


def test_a_question_in_a_transaction() -> None:
    """A request in a transaction carries the consumer's name, and an answer is sent at the commit."""
    room = Room()
    asking, answering = room.enter(), room.enter()
    consume(asking)
    name = ask(room, asking)
    answering.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
    publish(answering, name)
    assert list(asking.replies()) == []
    answering.tell(1, commands.Tx.Commit())
    assert [method.name for _, method in asking.replies()] == ["Basic.Deliver"]
