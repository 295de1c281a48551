"""The timeouts of a broker, a consumer, a queue and a policy: a cancel as in RabbitMQ 4.3, and what is acked late."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from broker.core.policy.policy import Policy
from broker.testing import Broker
from tests.raw_client import RawClient, publish_frames

HOLD_S = 60
TIMEOUT: dict[str, Any] = {"x-consumer-timeout": HOLD_S * 1000}
ACQUIRED = "x-acquired-count"


def client_of(broker: Broker, **options: Any) -> RawClient:
    """Return a raw client with a channel."""
    client = RawClient("127.0.0.1", broker.port)
    client.open(**options)
    client.open_channel(1)
    return client


def hold(client: RawClient, *, arguments: dict[str, Any] | None = None, count: int = 3, **queue: Any) -> list[int]:
    """Declare a queue with three messages, consume two of them, and return the delivery tags."""
    client.declare_queue(1, "q", durable=True, arguments=queue)
    client.method(1, commands.Confirm.Select())
    for number in range(count):
        client.send(publish_frames(1, "", "q", b"%d" % number))
    confirmed = 0
    while confirmed < count:
        confirmed = client.skip_to(commands.Basic.Ack, 1).delivery_tag
    client.call(1, commands.Basic.Qos(prefetch_count=2), commands.Basic.QosOk)
    client.call(
        1, commands.Basic.Consume(queue="q", consumer_tag="c", arguments=arguments or {}), commands.Basic.ConsumeOk
    )
    tags: list[int] = []
    for _ in range(2):
        tags.append(client.expect(commands.Basic.Deliver, 1).delivery_tag or 0)
        client.expect_content(1)
    return tags


def counts(broker: Broker) -> tuple[int, int]:
    """Return how many messages of the queue are ready and unacked."""
    found = broker.queue("q")
    return found.ready, found.unacked


def test_without_a_timeout_a_delivery_may_stay_unacked_for_ever() -> None:
    """There is none by default."""
    with Broker() as broker, client_of(broker) as client:
        hold(client)
        broker.clock.advance(3 * 86_400)
        client.call(1, commands.Basic.Qos(prefetch_count=2), commands.Basic.QosOk)
        assert counts(broker) == (1, 2)


def test_what_was_acked_in_time_starts_no_timeout() -> None:
    """Each delivery has its own timeout: an old channel that acks stays open."""
    with Broker(amqp={"consumer_timeout_ms": HOLD_S * 1000}) as broker, client_of(broker) as client:
        client.declare_queue(1, "q")
        for tag in range(1, 6):
            client.send(publish_frames(1, "", "q", b"work"))
            client.call(1, commands.Basic.Get(queue="q"), commands.Basic.GetOk)
            client.expect_content(1)
            broker.clock.advance(HOLD_S - 1)
            client.method(1, commands.Basic.Ack(delivery_tag=tag))
        client.call(1, commands.Basic.Qos(prefetch_count=2), commands.Basic.QosOk)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("of", ["consumer", "queue", "policy"])
def test_a_consumer_that_holds_a_message_for_too_long_is_cancelled(kind: str, of: str) -> None:
    """Its messages are ready again, not failed; the channel stays, and a late acknowledgement changes nothing."""
    queue = {"x-queue-type": kind, **(TIMEOUT if of == "queue" else {})}
    with Broker() as broker:
        if of == "policy":
            policy = Policy("p", "^q$", "queues", {"consumer-timeout": HOLD_S * 1000})
            broker._call(lambda: broker.server.engines["/"].vhost.policies.set(policy))
        client = client_of(broker)
        first, second = hold(client, arguments=TIMEOUT if of == "consumer" else None, **queue)
        broker.clock.advance(HOLD_S - 2)
        assert counts(broker) == (1, 2)
        broker.clock.advance(4)
        cancel = client.expect(commands.Basic.Cancel, 1)
        assert (cancel.consumer_tag, cancel.nowait) == ("c", True)
        assert counts(broker) == (3, 0)
        client.method(1, commands.Basic.Ack(delivery_tag=first))
        client.method(1, commands.Basic.Ack(delivery_tag=second, multiple=True))
        again = client.call(1, commands.Basic.Get(queue="q"), commands.Basic.GetOk)
        header, body = client.expect_content(1)
        assert (body, again.redelivered, again.message_count) == (b"0", True, 2)
        headers = header.properties.headers or {}
        assert headers == ({ACQUIRED: 1} if kind == "quorum" else {})
        client.close()


def test_the_consumer_decides_before_its_queue_and_the_least_of_queue_and_policy_counts() -> None:
    """A consumer with 0 has no timeout, whatever its queue says."""
    with Broker() as broker:
        policy = Policy("p", "^q$", "queues", {"consumer-timeout": 2 * HOLD_S * 1000})
        broker._call(lambda: broker.server.engines["/"].vhost.policies.set(policy))
        client = client_of(broker)
        hold(client, arguments={"x-consumer-timeout": 0}, **TIMEOUT)
        assert broker.server.engines["/"].vhost.queues["q"].rules.consumer_timeout_ms == HOLD_S * 1000
        broker.clock.advance(100 * HOLD_S)
        assert counts(broker) == (1, 2)
        client.close()


def test_what_was_delivered_later_stays_with_the_cancelled_consumer() -> None:
    """Only what was held for too long goes back; the rest can still be acknowledged, together with what cannot."""
    with Broker() as broker:
        client = client_of(broker)
        first, _ = hold(client, arguments=TIMEOUT)
        broker.clock.advance(HOLD_S // 2)
        client.method(1, commands.Basic.Ack(delivery_tag=first))
        client.expect(commands.Basic.Deliver, 1)
        client.expect_content(1)
        broker.clock.advance(HOLD_S // 2 + 2)
        client.expect(commands.Basic.Cancel, 1)
        assert counts(broker) == (1, 1)
        client.method(1, commands.Basic.Ack(delivery_tag=0, multiple=True))
        client.call(1, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
        assert counts(broker) == (1, 0)
        client.close()


def test_a_client_that_understands_no_cancel_loses_its_channel() -> None:
    """406 with RabbitMQ's text, as for a message that basic.get fetched."""
    with Broker() as broker:
        client = client_of(broker, capabilities={})
        hold(client, arguments=TIMEOUT)
        broker.clock.advance(HOLD_S + 2)
        close = client.expect_channel_close(1, 406)
        assert close.reply_text.startswith("PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out.")
        assert counts(broker) == (3, 0)
        client.open_channel(2)
        client.declare_queue(2, "other", arguments=TIMEOUT)
        client.send(publish_frames(2, "", "other", b"x"))
        client.call(2, commands.Basic.Get(queue="other"), commands.Basic.GetOk)
        client.expect_content(2)
        broker.clock.advance(HOLD_S + 2)
        client.expect_channel_close(2, 406)
        assert broker.queue("other").ready == 1
        client.close()


@pytest.mark.parametrize(
    ("value", "reason"),
    [(-1, "{value_negative,-1}"), ("a", '"expected integer, got longstr"'), (None, '"expected integer, got void"')],
    ids=str,
)
def test_a_timeout_that_cannot_be_is_406(value: Any, reason: str) -> None:
    """The texts are RabbitMQ's, at a declare and at a consume."""
    text = f"PRECONDITION_FAILED - invalid arg 'x-consumer-timeout' for queue 'q' in vhost '/': {reason}"
    arguments = {"x-consumer-timeout": value}
    with Broker() as broker:
        client = client_of(broker)
        client.method(1, commands.Queue.Declare(queue="q", arguments=arguments))
        assert client.expect_channel_close(1, 406).reply_text == text
        client.open_channel(2)
        client.declare_queue(2, "q")
        client.method(2, commands.Basic.Consume(queue="q", arguments=arguments))
        assert client.expect_channel_close(2, 406).reply_text == text
        client.close()
