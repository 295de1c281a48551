"""CC and BCC with pika: a publisher adds routing keys to one message."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.pika.conversation import channel_closed, drain


@pytest.fixture
def queues(channel: BlockingChannel, name: str) -> list[str]:
    """Three empty exclusive queues."""
    names = [f"{name}.{letter}" for letter in "abc"]
    for queue in names:
        channel.queue_declare(queue, exclusive=True)
    channel.confirm_delivery()
    return names


def test_every_key_routes(channel: BlockingChannel, queues: list[str]) -> None:
    """Each queue that some key leads to gets one copy, with the message's own routing key."""
    a, b, c = queues
    headers: Any = {"CC": [b, a], "BCC": [c, b]}
    channel.basic_publish("", a, b"body", pika.BasicProperties(headers=headers))
    for queue in queues:
        method, properties, _ = channel.basic_get(queue, auto_ack=True)
        assert (method.routing_key, method.message_count) == (a, 0)
        assert properties.headers == {"CC": [b, a]}


def test_keys_route_through_the_exchange(channel: BlockingChannel, queues: list[str], name: str) -> None:
    """The additional keys are routed by the exchange of the publish, including patterns."""
    a, b, _ = queues
    channel.exchange_declare(name, "topic", auto_delete=True)
    channel.queue_bind(a, name, "x.*")
    channel.queue_bind(b, name, "#.y")
    channel.basic_publish(name, "z", b"1", pika.BasicProperties(headers={"CC": ["x.y"]}))
    channel.basic_publish(name, "x.1", b"2", pika.BasicProperties(headers={"BCC": ["q.y", "x.2"]}))
    assert drain(channel, a) == [b"1", b"2"]
    assert drain(channel, b) == [b"1", b"2"]


def test_a_message_may_have_only_copies(channel: BlockingChannel, queues: list[str], name: str) -> None:
    """A mandatory message is routable when one of its keys is."""
    channel.basic_publish("", f"{name}.none", b"1", pika.BasicProperties(headers={"CC": [queues[0]]}), mandatory=True)
    nowhere = pika.BasicProperties(headers={"CC": [f"{name}.none2"]})
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", f"{name}.none", b"2", nowhere, mandatory=True)
    assert drain(channel, queues[0]) == [b"1"]


@pytest.mark.parametrize(
    ("header", "value", "kind"), [("CC", "text", "longstr"), ("BCC", True, "bool"), ("CC", None, "void")]
)
def test_what_is_no_array(channel: BlockingChannel, queues: list[str], header: str, value: Any, kind: str) -> None:
    """CC and BCC that are not arrays are refused."""
    text = f'PRECONDITION_FAILED - invalid message: {{unacceptable_type_in_header,"{header}",{kind}}}'
    with channel_closed(406, text):
        channel.basic_publish("", queues[0], b"body", pika.BasicProperties(headers={header: value}))


def test_what_is_no_text_in_the_array(channel: BlockingChannel, queues: list[str]) -> None:
    """Entries that are not text are ignored."""
    headers: Any = {"CC": [1, None, queues[1], {"a": "b"}]}
    channel.basic_publish("", queues[0], b"body", pika.BasicProperties(headers=headers))
    assert [drain(channel, queue) for queue in queues] == [[b"body"], [b"body"], []]
