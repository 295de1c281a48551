"""Delayed retry, with pika: which messages that come back wait, how long, and what becomes of them meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker.testing import Broker
from tests.deadline import wait_until
from tests.integration.pika.conversation import channel_closed, drain, publish, ready

KINDS: Final = ("classic", "quorum")
Talk = tuple[Broker, BlockingChannel]
NOTHING: Final[Mapping[str, Any]] = {}


@contextmanager
def retrying(kind: str, type_: str = "all", arguments: Mapping[str, Any] = NOTHING) -> Iterator[Talk]:
    """Yield a broker and a channel with a queue `q` whose messages wait 1 s, 2 s and then 2.5 s."""
    given = {
        "x-queue-type": kind,
        "x-delayed-retry-type": type_,
        "x-delayed-retry-min": 1000,
        "x-delayed-retry-max": 2500,
        **arguments,
    }
    with Broker() as broker, pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True, arguments=given)
        yield broker, channel


def counts(broker: Broker) -> tuple[int, int, int]:
    """Return how many messages are ready, unacked and delayed."""
    queue = broker._queue("q", "/")
    return queue.ready, queue.unacked, queue.delayed


def back(broker: Broker, channel: BlockingChannel, *, failed: bool = True) -> Any:
    """Fetch a message and return it, by basic.reject if it has failed, else by basic.nack; return its properties."""
    method, properties, _ = channel.basic_get("q")
    assert method is not None
    if failed:
        channel.basic_reject(method.delivery_tag)
    else:
        channel.basic_nack(method.delivery_tag)
    ready(channel, "q")  # it is done
    broker.wait_idle()
    return properties


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("type_", "failed", "waits"), [
    ("all", True, True), ("all", False, True), ("failed", True, True), ("failed", False, False),
    ("returned", True, False), ("returned", False, True), ("disabled", True, False), ("never", True, False),
])  # fmt: skip
def test_the_type_says_which_messages_wait(kind: str, type_: str, failed: bool, waits: bool) -> None:
    """basic.reject is a failure, basic.nack a return; a type that RabbitMQ does not know is none."""
    with retrying(kind, type_) as (broker, channel):
        publish(channel, "q", b"m")
        back(broker, channel, failed=failed)
        assert counts(broker) == ((0, 0, 1) if waits else (1, 0, 0))
        assert (channel.basic_get("q")[0] is None) is waits
        broker.clock.advance(0.999)
        assert counts(broker)[2] == waits
        broker.clock.advance(0.001)
        broker.wait_idle()
        method, _, body = channel.basic_get("q")
        assert waits is False or (method.redelivered and body == b"m")


@pytest.mark.parametrize("kind", KINDS)
def test_the_wait_grows_with_the_failures_up_to_a_limit(kind: str) -> None:
    """It is min times the failed deliveries, at most max; a return that has not failed counts for nothing."""
    with retrying(kind) as (broker, channel):
        publish(channel, "q", b"m")
        for seconds, failed in [(1, False), (1, True), (2, True), (2.5, True), (2.5, True), (2.5, False)]:
            back(broker, channel, failed=failed)
            broker.clock.advance(seconds - 0.001)
            assert counts(broker) == (0, 0, 1)
            broker.clock.advance(0.001)
            broker.wait_idle()
            assert counts(broker) == (1, 0, 0)


def test_the_counters_of_a_quorum_queue_survive_the_wait() -> None:
    """Both counters are there after it, and the delivery limit counts before a message waits."""
    with retrying("quorum", "all", {"x-delivery-limit": 2, "x-dead-letter-exchange": "amq.fanout"}) as (
        broker,
        channel,
    ):
        channel.queue_declare("dead")
        channel.queue_bind("dead", "amq.fanout")
        publish(channel, "q", b"m")
        seen = []
        for _ in range(3):
            headers = back(broker, channel).headers or {}
            seen.append((headers.get("x-acquired-count"), headers.get("x-delivery-count")))
            broker.clock.advance(5)
            broker.wait_idle()
        assert seen == [(None, None), (1, 1), (2, 2)]
        _, properties, body = channel.basic_get("dead")
        assert (body, properties.headers["x-first-death-reason"]) == (b"m", "delivery_limit")
        assert counts(broker) == (0, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_due_is_delivered_before_fresh_messages(kind: str) -> None:
    """In the order of their moments, and before all messages of the queue."""
    with retrying(kind) as (broker, channel):
        publish(channel, "q", b"a", b"b", b"c")
        for _ in range(2):
            back(broker, channel)
            broker.clock.advance(0.1)
        publish(channel, "q", b"d")
        broker.clock.advance(2)
        broker.wait_idle()
        assert drain(channel, "q") == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_channel_is_a_failure(kind: str) -> None:
    """Messages unacked at the end of a channel wait, if failed ones do."""
    with retrying(kind, "failed") as (broker, channel):
        publish(channel, "q", b"a", b"b")
        other = channel.connection.channel()
        other.basic_get("q")
        other.close()
        broker.wait_idle()
        assert counts(broker) == (1, 0, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_that_wait_count_for_the_limit_and_are_purged(kind: str) -> None:
    """They fill the queue, a purge counts them, and a delete ends them."""
    with retrying(kind, arguments={"x-max-length": 2, "x-overflow": "reject-publish"}) as (broker, channel):
        publish(channel, "q", b"a", b"b")
        back(broker, channel)
        with pytest.raises(pika.exceptions.NackError):
            publish(channel, "q", b"c")
        assert channel.queue_purge("q").method.message_count == 2
        assert counts(broker) == (0, 0, 0)
        publish(channel, "q", b"d")
        back(broker, channel)
        channel.queue_delete("q")
        broker.clock.advance(5)
        broker.wait_idle()


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_queue_drops_what_is_delivered_next_and_then_what_waits(kind: str) -> None:
    """With drop-head the ready messages go first, and the oldest that waits last."""
    with retrying(kind, arguments={"x-max-length": 2}) as (broker, channel):
        publish(channel, "q", b"a", b"b")
        back(broker, channel)
        publish(channel, "q", b"c")
        assert counts(broker) == (1, 0, 1)
        back(broker, channel)
        assert counts(broker) == (0, 0, 2)
        publish(channel, "q", b"d")
        wait_until(lambda: counts(broker) == (0, 0, 2), "the limit")
        broker.clock.advance(5)
        broker.wait_idle()
        assert drain(channel, "q") == [b"a", b"c"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_time_to_live_ends_when_the_message_is_due_again(kind: str) -> None:
    """A message does not expire while it waits, but when it is at the head again."""
    with retrying(kind, arguments={"x-message-ttl": 500}) as (broker, channel):
        publish(channel, "q", b"a")
        back(broker, channel)
        broker.clock.advance(0.9)
        assert counts(broker) == (0, 0, 1)
        broker.clock.advance(0.2)
        broker.wait_idle()
        assert counts(broker) == (0, 0, 0)


def test_a_consumer_gets_a_message_again_when_it_is_due() -> None:
    """A consumer that rejects the message sees it as often as time allows."""
    with retrying("quorum") as (broker, channel):
        seen = []

        def take(channel: BlockingChannel, method: Any, _properties: Any, body: bytes) -> None:
            seen.append(body)
            channel.basic_reject(method.delivery_tag)

        channel.basic_qos(prefetch_count=1)
        channel.basic_consume("q", take)
        publish(channel, "q", b"m")
        for times in (1, 2, 3):
            while len(seen) < times:
                channel.connection.process_data_events(0.01)
            ready(channel, "q")
            broker.wait_idle()
            broker.clock.advance(2.5)
        assert seen == [b"m"] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_declare_compares_the_arguments(kind: str) -> None:
    """As RabbitMQ does for quorum queues; whatever the values are, the first declare takes them."""
    with retrying(kind, "never", {"x-delayed-retry-min": 0, "x-delayed-retry-max": "a"}) as (_broker, channel):
        given = {"x-queue-type": kind, "x-delayed-retry-type": "never", "x-delayed-retry-min": 0}
        text = "inequivalent arg 'x-delayed-retry-max' for queue 'q' in vhost '/'"
        said = "received none but current is the value 'a' of type 'longstr'"
        with channel_closed(406, f"PRECONDITION_FAILED - {text}: {said}"):
            channel.queue_declare("q", durable=True, arguments=given)
