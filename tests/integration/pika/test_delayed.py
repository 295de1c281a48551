"""x-delayed-message exchanges with pika: held messages are delivered, also after a kill of the broker."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.broker_process import BrokerProcess
from tests.deadline import DEADLINE_S
from tests.integration.pika.conversation import channel_closed, drain, parameters, ready

ARGUMENTS = {"x-delayed-type": "direct"}
HOUR_MS = 3_600_000


@pytest.fixture
def delayed(channel: BlockingChannel, queue: str, name: str, oracle: bool) -> BlockingChannel:
    """Provide a channel in confirm mode, with a delayed exchange that is bound to the queue of the same name."""
    if oracle:
        pytest.skip("needs a plugin")
    channel.confirm_delivery()
    channel.exchange_declare(name, "x-delayed-message", arguments=ARGUMENTS)
    channel.queue_bind(queue, name, "k")
    return channel


def delay(channel: BlockingChannel, exchange: str, delay_ms: Any, body: bytes, *, mandatory: bool = False) -> None:
    """Publish a persistent message with a delay."""
    properties = pika.BasicProperties(headers={"x-delay": delay_ms}, delivery_mode=2)
    channel.basic_publish(exchange, "k", body, properties, mandatory=mandatory)


def received(channel: BlockingChannel, queue: str, count: int) -> list[tuple[bytes, Any]]:
    """Wait for messages, which arrive without a request; return bodies and delays."""
    found: list[tuple[bytes, Any]] = []
    for method, properties, body in channel.consume(queue, auto_ack=True, inactivity_timeout=DEADLINE_S):
        assert method is not None, f"only {found} came"
        found.append((body, (properties.headers or {}).get("x-delay")))
        if len(found) == count:
            break
    channel.cancel()
    return found


def test_messages_come_in_the_order_of_their_moments(delayed: BlockingChannel, queue: str, name: str) -> None:
    """Delayed messages are confirmed at once and released in due order; without a delay they do not wait."""
    delay(delayed, name, 150, b"third", mandatory=True)
    delay(delayed, name, 50, b"second", mandatory=True)
    delay(delayed, name, "no number", b"first", mandatory=True)
    assert ready(delayed, f"amq.delayed.{name}") + ready(delayed, queue) == 3
    assert received(delayed, queue, 3) == [(b"first", "no number"), (b"second", -50), (b"third", -150)]


def test_what_is_held_is_counted_and_purged(delayed: BlockingChannel, queue: str, name: str) -> None:
    """Held messages are counted and purged by the name of their queue, which cannot be consumed."""
    delay(delayed, name, HOUR_MS, b"held")
    assert ready(delayed, f"amq.delayed.{name}") == 1
    assert delayed.queue_purge(f"amq.delayed.{name}").method.message_count == 1
    text = "holds delayed messages: it can be purged, nothing else"
    with channel_closed(403, f"ACCESS_REFUSED - queue 'amq.delayed.{name}' in vhost '/' {text}"):
        delayed.basic_get(f"amq.delayed.{name}")


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_what_is_held_survives_the_broker(broker_process: BrokerProcess, *, kill: bool) -> None:
    """Messages that fell due during the downtime are released at once, the others stay held; none comes twice."""
    broker_process.environment["SLOTMQ_SERVER__DRAIN_TIMEOUT_MS"] = "200"
    broker_process.start()
    with pika.BlockingConnection(parameters(broker_process.address)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("x", "x-delayed-message", durable=True, arguments=ARGUMENTS)
        channel.queue_declare("q", durable=True)
        channel.queue_bind("q", "x", "k")
        delay(channel, "x", 1, b"before")
        assert received(channel, "q", 1) == [(b"before", -1)]
        delay(channel, "x", HOUR_MS, b"held")
        delay(channel, "x", 300, b"after")
    broker_process.restart(kill=kill)
    with pika.BlockingConnection(parameters(broker_process.address)) as connection:
        channel = connection.channel()
        assert received(channel, "q", 1) == [(b"after", -300)]
        assert (drain(channel, "q"), ready(channel, "amq.delayed.x")) == ([], 1)
        channel.exchange_delete("x")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no queue"):
            channel.queue_declare("amq.delayed.x", passive=True)
