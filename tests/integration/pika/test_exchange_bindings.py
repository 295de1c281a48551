"""Bindings between exchanges, and alternate exchanges, with pika."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from tests.broker_process import BrokerProcess
from tests.integration.pika.conversation import channel_closed, drain, parameters


@pytest.fixture
def confirmed(channel: BlockingChannel) -> BlockingChannel:
    """Provide an open channel in confirm mode."""
    channel.confirm_delivery()
    return channel


@pytest.fixture
def exchanges(confirmed: BlockingChannel, name: str) -> Iterator[tuple[str, str]]:
    """Provide a topic exchange and a fanout exchange."""
    topic, fanout = f"{name}.topic", f"{name}.fanout"
    confirmed.exchange_declare(topic, "topic")
    confirmed.exchange_declare(fanout, "fanout")
    yield topic, fanout
    if confirmed.is_open:
        confirmed.exchange_delete(topic)
        confirmed.exchange_delete(fanout)


def test_a_message_follows_bindings_between_exchanges(
    confirmed: BlockingChannel, queue: str, exchanges: tuple[str, str]
) -> None:
    """A message arrives once, with the exchange of its publish, however many paths lead to the queue."""
    topic, fanout = exchanges
    confirmed.queue_bind(queue, fanout)
    confirmed.queue_bind(queue, topic, "a.#")
    confirmed.exchange_bind(fanout, topic, "a.*")
    confirmed.exchange_bind(fanout, topic, "*.b")
    confirmed.exchange_bind(topic, fanout)  # a circle
    confirmed.basic_publish(topic, "a.b", b"one", mandatory=True)
    method, _, body = confirmed.basic_get(queue, auto_ack=True)
    assert (method.exchange, method.routing_key, body) == (topic, "a.b", b"one")
    assert drain(confirmed, queue) == []
    confirmed.exchange_unbind(fanout, topic, "a.*")
    confirmed.exchange_unbind(fanout, topic, "*.b")
    with pytest.raises(UnroutableError):
        confirmed.basic_publish(topic, "x.b", b"two", mandatory=True)


def test_exchange_bind_names_what_is_not_there(confirmed: BlockingChannel, exchanges: tuple[str, str]) -> None:
    """The error for a missing exchange names the source first."""
    with channel_closed(404, f"NOT_FOUND - no exchange '{exchanges[0]}.no' in vhost '/'"):
        confirmed.exchange_bind(f"{exchanges[1]}.no", f"{exchanges[0]}.no")


def test_an_auto_delete_exchange_goes_with_the_exchange_it_led_to(
    confirmed: BlockingChannel, name: str, exchanges: tuple[str, str]
) -> None:
    """An auto-delete exchange is deleted with its last target, and so is a source that was bound to it alone."""
    _, fanout = exchanges
    chain = [f"{name}.{number}" for number in range(3)]
    for exchange in chain:
        confirmed.exchange_declare(exchange, "fanout", auto_delete=True)
    for source, destination in zip(chain, [*chain[1:], fanout], strict=True):
        confirmed.exchange_bind(destination, source)
    confirmed.exchange_delete(fanout)
    for exchange in chain:
        channel = confirmed.connection.channel()
        with pytest.raises(ChannelClosedByBroker, match="no exchange"):
            channel.exchange_declare(exchange, passive=True)


def test_what_no_binding_takes_goes_to_the_alternate(
    confirmed: BlockingChannel, queue: str, name: str, exchanges: tuple[str, str]
) -> None:
    """An unroutable message is returned until the alternate exchange exists, and then routed through it."""
    _, fanout = exchanges
    confirmed.exchange_declare(name, "direct", arguments={"alternate-exchange": f"{name}.later"}, auto_delete=True)
    confirmed.queue_bind(queue, name, "known")
    for _ in range(3):
        with pytest.raises(UnroutableError):
            confirmed.basic_publish(name, "unknown", b"lost", mandatory=True)
    confirmed.exchange_declare(f"{name}.later", "fanout", auto_delete=True)
    confirmed.exchange_bind(fanout, f"{name}.later")
    confirmed.queue_declare(f"{name}.rest", exclusive=True)
    confirmed.queue_bind(f"{name}.rest", fanout)
    confirmed.basic_publish(name, "unknown", b"rest", mandatory=True)
    confirmed.basic_publish(name, "known", b"known", mandatory=True)
    assert (drain(confirmed, queue), drain(confirmed, f"{name}.rest")) == ([b"known"], [b"rest"])


def test_bindings_between_durable_exchanges_survive_a_kill(broker_process: BrokerProcess) -> None:
    """Bindings between durable exchanges survive a kill, and removed ones stay removed."""
    broker_process.environment["SLOTMQ_SERVER__DRAIN_TIMEOUT_MS"] = "200"
    broker_process.start()
    with pika.BlockingConnection(parameters(broker_process.address)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for exchange in ("a", "b", "c"):
            channel.exchange_declare(exchange, "fanout", durable=True)
        channel.queue_declare("q", durable=True)
        channel.queue_bind("q", "c")
        channel.exchange_bind("b", "a")
        channel.exchange_bind("c", "b")
        channel.exchange_bind("c", "amq.topic", "t.#")
        channel.exchange_bind("c", "amq.topic", "u.#")
        channel.exchange_unbind("c", "amq.topic", "u.#")
        # The confirm arrives once the publish is on disk, and so is everything before it: all share one log.
        channel.basic_publish("", "q", b"synced", pika.BasicProperties(delivery_mode=2))
    broker_process.restart()
    with pika.BlockingConnection(parameters(broker_process.address)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_purge("q")
        for exchange, key in (("a", ""), ("amq.topic", "t.1"), ("amq.topic", "u.1")):
            channel.basic_publish(exchange, key, exchange.encode())
        assert drain(channel, "q") == [b"a", b"amq.topic"]
