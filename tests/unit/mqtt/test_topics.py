"""Topics and filters become keys and come back."""

from __future__ import annotations

import pytest

from broker.mqtt.errors import PacketError
from broker.mqtt.topics import binding_key, routing_key, topic_of


@pytest.mark.parametrize(
    "topic", ["a", "a/b", "/", "a//b", "/a/", "v1.2/x", ".", "*", "a/*/b", "ü/€", "x" * 255, "/" * 63]
)
def test_a_topic_comes_back(topic: str) -> None:
    """The key of a topic is that of RabbitMQ unless it has dots, and leads back to the topic."""
    key = routing_key(topic.encode(), 64)
    assert topic_of(key) == topic.encode()
    if "." not in topic:
        assert key == topic.replace("/", ".")


@pytest.mark.parametrize(
    ("topic_filter", "key"),
    [
        ("a/+/b", "a.*.b"),
        ("#", "#"),
        ("+", "*"),
        ("a/#", "a.#"),
        ("/+", ".*"),
        ("v1.2/+", "v1/2.*"),
        ("a*b/c", "a*b.c"),
    ],
)
def test_filters(topic_filter: str, key: str) -> None:
    """A filter has the wildcards of AMQP."""
    assert binding_key(topic_filter, 64) == key


@pytest.mark.parametrize("topic_filter", ["", "a/#/b", "a+", "+a/b", "a#", "*", "a/*", "$other/#", "x" * 256, "/" * 64])
def test_filters_that_cannot_be(topic_filter: str) -> None:
    """A filter that is malformed, too long, or would mean something else in AMQP is refused with 0x8F."""
    with pytest.raises(PacketError) as caught:
        binding_key(topic_filter, 64)
    assert caught.value.reason_code == 0x8F


@pytest.mark.parametrize("key", ["", "$SYS.a", "a.+", "a.#", "a\0"])
def test_keys_that_are_no_topics(key: str) -> None:
    """No subscription may match them."""
    assert topic_of(key) is None
