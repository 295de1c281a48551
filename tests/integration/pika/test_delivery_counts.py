"""The two counters of a quorum queue's messages, their headers and the delivery limit, as in RabbitMQ 4.3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.broker_process import BrokerProcess
from tests.deadline import wait_until
from tests.integration.pika.conversation import Received, drain, parameters, publish, ready

Connect = Callable[..., pika.BlockingConnection]
Counts = tuple[int | None, int | None]
FIRST: Final[Counts] = (None, None)
LIMITED: Final = {
    "x-queue-type": "quorum",
    "x-delivery-limit": 2,
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "dead",
}


@pytest.fixture
def limited(connect: Connect, channel: BlockingChannel, name: str) -> Iterator[str]:
    """Provide a quorum queue with a delivery limit, whose dead letters go to the queue dead."""
    channel.queue_declare("dead")
    channel.queue_declare(name, durable=True, arguments=LIMITED)
    yield name
    again = connect().channel()
    for queue in (name, "dead"):
        again.queue_delete(queue)


def counts_of(properties: Any) -> Counts:
    """Return x-acquired-count and x-delivery-count, None for a header that is not there."""
    headers = properties.headers or {}
    return headers.get("x-acquired-count"), headers.get("x-delivery-count")


def fetch(channel: BlockingChannel, queue: str) -> tuple[int, Counts]:
    """Fetch a message, which another node may have to return first; return its tag and its counts."""
    found: list[tuple[int, Counts]] = []

    def _fetch() -> bool:
        method, properties, _ = channel.basic_get(queue)
        if method is not None:
            assert method.redelivered is (counts_of(properties)[0] is not None)
            found.append((method.delivery_tag, counts_of(properties)))
        return method is not None

    wait_until(_fetch, "a message")
    return found[0]


def test_a_nack_and_a_recover_wear_no_message(channel: BlockingChannel, limited: str) -> None:
    """However often a message returns by them it is not dead-lettered, and has no x-delivery-count."""
    publish(channel, limited, b"m")
    for returns in range(6):
        tag, counts = fetch(channel, limited)
        assert counts == ((returns, None) if returns else FIRST)
        if returns % 2:
            channel.basic_recover(requeue=True)
        else:
            channel.basic_nack(tag, requeue=True)
    assert fetch(channel, limited)[1] == (6, None)
    assert ready(channel, "dead") == 0


def test_a_reject_and_a_lost_channel_wear_a_message(connect: Connect, channel: BlockingChannel, limited: str) -> None:
    """Each counts for both; once a message has failed more often than the limit says, it is dead-lettered."""
    publish(channel, limited, b"m")
    tag, _ = fetch(channel, limited)
    channel.basic_nack(tag, requeue=True)
    tag, counts = fetch(channel, limited)
    assert counts == (1, None)
    channel.basic_reject(tag, requeue=True)
    other = connect().channel()
    assert fetch(other, limited)[1] == (2, 1)
    other.close()
    tag, counts = fetch(channel, limited)
    assert counts == (3, 2)
    channel.basic_nack(tag, requeue=True)  # at the limit, and it has not failed
    tag, counts = fetch(channel, limited)
    assert counts == (4, 2)
    channel.basic_reject(tag, requeue=True)
    wait_until(lambda: ready(channel, "dead") == 1, "the dead letter")
    _, properties, _ = channel.basic_get("dead", auto_ack=True)
    assert properties is not None
    assert properties.headers["x-death"][0]["reason"] == "delivery_limit"
    assert ready(channel, limited) == 0


def test_a_lost_connection_wears_messages_of_a_consumer(
    connect: Connect, channel: BlockingChannel, limited: str
) -> None:
    """Each message that a consumer held has its own counts, whatever the order and number of its returns."""
    publish(channel, limited, b"0", b"1", b"2")
    received = Received(channel, limited)
    received.wait(3)
    channel.basic_nack(received.tags[1], requeue=True)
    received.wait(4)
    channel.basic_cancel(received.tag)
    lost = channel.connection
    lost.close()
    channel = connect().channel()
    found: dict[bytes, Counts] = {}

    def _take(_channel: BlockingChannel, _method: Any, properties: Any, body: bytes) -> None:
        found[body] = counts_of(properties)

    channel.basic_consume(limited, _take, auto_ack=True)
    wait_until(lambda: channel.connection.process_data_events(time_limit=0.01) or len(found) == 3, "all messages")
    assert found == {b"0": (1, 1), b"1": (2, 1), b"2": (1, 1)}


def test_a_returned_transaction_counts_as_its_methods_do(channel: BlockingChannel, limited: str) -> None:
    """A reject that is committed has failed, a nack has not."""
    publish(channel, limited, b"m")
    transaction = channel.connection.channel()
    transaction.tx_select()
    for act in (transaction.basic_nack, transaction.basic_reject):
        tag, _ = fetch(transaction, limited)
        act(tag, requeue=True)
        transaction.tx_commit()
    assert fetch(channel, limited)[1] == (2, 1)


def test_a_limit_of_zero(channel: BlockingChannel, name: str) -> None:
    """The first reject drops a message, and a nack does not."""
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 0})
    try:
        publish(channel, name, b"m")
        tag, _ = fetch(channel, name)
        channel.basic_nack(tag, requeue=True)
        tag, _ = fetch(channel, name)
        channel.basic_reject(tag, requeue=True)
        wait_until(lambda: drain(channel, name) == [], "nothing")
    finally:
        channel.queue_delete(name)


@pytest.mark.fault
@pytest.mark.parametrize("checkpoints", [False, True], ids=["log", "checkpoint"])
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_both_counts_are_kept(broker_process: BrokerProcess, *, kill: bool, checkpoints: bool) -> None:
    """After a restart and after a kill each message has its counts, and acked messages stay away."""
    if checkpoints:
        broker_process.environment["SLOTMQ_STORE__CHECKPOINT_INTERVAL_MS"] = "1000"
    broker_process.start()
    with pika.BlockingConnection(parameters(broker_process.address)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
        publish(channel, "q", b"acked", b"nacked", b"rejected", b"both")
        for both in (channel.basic_nack, channel.basic_reject):
            for method, _, body in [channel.basic_get("q") for _ in range(ready(channel, "q"))]:
                match body:
                    case b"acked":
                        channel.basic_ack(method.delivery_tag)
                    case b"nacked":
                        channel.basic_nack(method.delivery_tag)
                    case b"rejected":
                        channel.basic_reject(method.delivery_tag)
                    case b"both":
                        both(method.delivery_tag)
        channel.queue_declare("barrier", durable=True)
        publish(channel, "barrier", b"", persistent=True)
        if checkpoints:
            connection.sleep(2)
    broker_process.restart(kill=kill)
    with pika.BlockingConnection(parameters(broker_process.address)) as connection:
        channel = connection.channel()
        found = {body: counts_of(properties) for _, properties, body in [channel.basic_get("q") for _ in range(3)]}
        assert found == {b"nacked": (2, None), b"rejected": (2, 2), b"both": (2, 1)}
        assert channel.basic_get("q")[0] is None
