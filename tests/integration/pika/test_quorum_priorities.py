"""Priorities 0 to 31 of quorum queues, and what comes back before all of them, as in RabbitMQ 4.3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker.cli.control_client import ask
from tests.broker_process import BrokerProcess
from tests.deadline import wait_until
from tests.integration.pika.conversation import Received, drain, parameters, ready

QUORUM: Final = {"x-queue-type": "quorum"}


@pytest.fixture
def levelled(channel: BlockingChannel, name: str) -> Iterator[str]:
    """Provide an empty quorum queue, and a channel with confirms."""
    channel.confirm_delivery()
    channel.queue_declare(name, durable=True, arguments=QUORUM)
    yield name
    channel.queue_delete(name)


def put(channel: BlockingChannel, queue: str, body: bytes, priority: int | None = None, **properties: Any) -> None:
    """Publish one message of a priority, and wait for its confirm."""
    channel.basic_publish("", queue, body, pika.BasicProperties(priority=priority, **properties))


def take(channel: BlockingChannel, queue: str, count: int) -> dict[bytes, int]:
    """Fetch this many messages, and return the tags of their bodies in order."""
    found: dict[bytes, int] = {}
    for _ in range(count):
        method, _, body = channel.basic_get(queue)
        assert method is not None
        assert body is not None
        found[body] = method.delivery_tag
    return found


def test_levels_are_strict(channel: BlockingChannel, levelled: str) -> None:
    """The highest level comes first, in order within it; none means 4, and what is above 31 means 31."""
    messages = {b"0": 0, b"-": None, b"255": 255, b"4": 4, b"5": 5, b"3": 3, b"31": 31, b"-2": None, b"5b": 5}
    for body, priority in messages.items():
        put(channel, levelled, body, priority)
    assert ready(channel, levelled) == len(messages)
    assert drain(channel, levelled) == [b"255", b"31", b"5", b"5b", b"-", b"4", b"-2", b"3", b"0"]
    unconfirmed = channel.connection.channel()
    runs = [(b"9", 9), (b"9b", 9), (b"-", None), (b"-b", None), (b"1", 1), (b"9c", 9)]
    for body, level in runs:
        put(unconfirmed, levelled, body, level)
    put(channel, levelled, b"numbered", 20, headers={"x-producer": levelled, "x-seq": 1})
    wait_until(lambda: ready(channel, levelled) == len(runs) + 1, "all messages")
    assert drain(channel, levelled) == [b"numbered", b"9", b"9b", b"9c", b"-", b"-b", b"1"]


def test_a_consumer_gets_the_levels_in_order(channel: BlockingChannel, levelled: str) -> None:
    """A message that arrives later in a higher level is delivered before those that no consumer has yet."""
    channel.basic_qos(prefetch_count=1)
    for body, priority in ((b"low", 1), (b"default", None), (b"high", 9)):
        put(channel, levelled, body, priority)
    received = Received(channel, levelled)
    assert received.wait(1) == [b"high"]
    put(channel, levelled, b"highest", 20)
    for count in range(2, 5):
        channel.basic_ack(received.tags[-1])
        received.wait(count)
    assert received.bodies == [b"high", b"highest", b"default", b"low"]


def test_what_comes_back_is_first_in_the_order_of_its_return(channel: BlockingChannel, levelled: str) -> None:
    """Neither its level nor its age counts; a return again is the last one."""
    for body, priority in ((b"a", 1), (b"b", 9), (b"c", None), (b"d", None)):
        put(channel, levelled, body, priority)
    held = take(channel, levelled, 4)
    assert list(held) == [b"b", b"c", b"d", b"a"]
    put(channel, levelled, b"highest", 31)
    channel.basic_nack(held[b"d"])
    channel.basic_reject(held[b"a"])
    channel.basic_nack(held[b"c"])
    again = take(channel, levelled, 1)
    channel.basic_nack(again[b"d"])
    assert drain(channel, levelled) == [b"a", b"c", b"d", b"highest"]
    channel.basic_ack(held[b"b"])


def test_a_closed_channel_returns_what_it_held_in_order(channel: BlockingChannel, levelled: str) -> None:
    """It comes before what is ready, whatever the level."""
    for body, priority in ((b"a", 1), (b"b", 9), (b"c", 1)):
        put(channel, levelled, body, priority)
    other = channel.connection.channel()
    assert list(take(other, levelled, 2)) == [b"b", b"a"]
    other.close()
    put(channel, levelled, b"d", 31)
    wait_until(lambda: ready(channel, levelled) == 4, "what came back")
    assert drain(channel, levelled) == [b"b", b"a", b"d", b"c"]


def test_each_level_expires_at_its_own_head(channel: BlockingChannel, levelled: str) -> None:
    """A message without an end, whether it came back or is in another level, holds up the expiry of no other level."""
    put(channel, levelled, b"came back", 9)
    channel.basic_nack(take(channel, levelled, 1)[b"came back"])
    for body, priority, expiration in ((b"high", 20, None), (b"low", 1, "1"), (b"default", None, "1")):
        put(channel, levelled, body, priority, expiration=expiration)
    wait_until(lambda: ready(channel, levelled) == 2, "the expiry of two")
    assert drain(channel, levelled) == [b"came back", b"high"]


def test_drop_head_drops_what_would_be_delivered_next(channel: BlockingChannel, name: str) -> None:
    """Returned messages are dropped first, then the highest level."""
    channel.confirm_delivery()
    channel.queue_declare(name, durable=True, arguments={**QUORUM, "x-max-length": 2})
    try:
        for body, priority in ((b"low", 0), (b"high", 9), (b"default", None)):
            put(channel, name, body, priority)
        assert drain(channel, name) == [b"default", b"low"]
        for body in (b"back second", b"back first"):
            put(channel, name, body, 0)
        held = take(channel, name, 2)
        for body in (b"back first", b"back second"):
            channel.basic_nack(held[body])
        put(channel, name, b"high", 9)
        wait_until(lambda: ready(channel, name) == 2, "two messages")
        assert drain(channel, name) == [b"back second", b"high"]
    finally:
        channel.queue_delete(name)


def test_a_purge_and_a_deletion_count_all_levels(channel: BlockingChannel, levelled: str) -> None:
    """A level that was empty is used again."""
    for _ in range(2):
        for priority in (None, 0, 31):
            put(channel, levelled, b"", priority)
        assert channel.queue_purge(levelled).method.message_count == 3
    for priority in (None, 0, 31):
        put(channel, levelled, b"", priority)
    assert channel.queue_delete(levelled).method.message_count == 3
    channel.queue_declare(levelled, durable=True, arguments=QUORUM)
    assert ready(channel, levelled) == 0


def test_a_dead_letter_and_a_transaction_have_their_level(channel: BlockingChannel, levelled: str) -> None:
    """A message keeps its priority whatever brings it into the queue."""
    put(channel, levelled, b"default")
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": levelled}
    channel.queue_declare("source", exclusive=False, arguments=dead)
    try:
        put(channel, "source", b"dead", 9)
        wait_until(lambda: ready(channel, "source") == 1, "the message")
        channel.basic_reject(take(channel, "source", 1)[b"dead"], requeue=False)
        wait_until(lambda: ready(channel, levelled) == 2, "the dead letter")
        transaction = channel.connection.channel()
        transaction.tx_select()
        put(transaction, levelled, b"committed", 31)
        transaction.tx_commit()
        assert drain(channel, levelled) == [b"committed", b"dead", b"default"]
    finally:
        channel.queue_delete("source")


@pytest.mark.fault
def test_an_operator_sees_the_levels(broker_process: BrokerProcess) -> None:
    """The ready messages of each level are counted, and a level without any is left out."""
    broker_process.start()
    with pika.BlockingConnection(parameters(broker_process.address)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True, arguments=QUORUM)
        channel.queue_declare("classic")
        for priority in (None, 4, 0, 31, 40):
            put(channel, "q", b"", priority)
        put(channel, "q", b"", 7)
        take(channel, "q", 1)
        rows = {row["name"]: row["messages_by_priority"] for row in ask(broker_process.folder, "list_queues")}
        assert rows == {"classic": {}, "q": {"0": 1, "4": 2, "7": 1, "31": 1}}


@pytest.mark.fault
@pytest.mark.parametrize("checkpoints", [False, True], ids=["log", "checkpoint"])
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_levels_and_returns_are_kept(broker_process: BrokerProcess, *, kill: bool, checkpoints: bool) -> None:
    """After a restart and a kill each message is in its level, and what came back before it is first, level by level.

    A deleted queue stays deleted with all its levels, and no later queue gets a number of theirs.
    """
    if checkpoints:
        broker_process.environment["SLOTMQ_STORE__CHECKPOINT_INTERVAL_MS"] = "1000"
    broker_process.start()
    for start in range(3):
        with pika.BlockingConnection(parameters(broker_process.address)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            if start:
                rows: list[tuple[bytes, int | None]] = [
                    (b"back 9", 1),
                    (b"back 0", 1),
                    (b"31", None),
                    (b"5", None),
                    (b"-", None),
                    (b"3", None),
                ]
                for body, acquired in rows:
                    _, properties, found = channel.basic_get("q", auto_ack=True)
                    assert found == body
                    assert properties is not None
                    assert (properties.headers or {}).get("x-acquired-count") == acquired
                assert ready(channel, "q") == 0
                assert ready(channel, "other") == start
                assert [ready(channel, f"later {past}") for past in range(start)] == [1] * start
            for queue in ("q", "other"):
                channel.queue_declare(queue, durable=True, arguments=QUORUM)
            for _ in range(3):
                channel.queue_declare("deleted", durable=True, arguments=QUORUM)
                put(channel, "deleted", b"never", 7)
                channel.queue_delete("deleted")
            channel.queue_declare(f"later {start}", durable=True, arguments=QUORUM)
            put(channel, f"later {start}", b"", 8)
            put(channel, "other", b"", 8)
            for body, priority in ((b"back 0", 0), (b"back 9", 9)):
                put(channel, "q", body, priority)
            held = take(channel, "q", 2)
            for body in (b"back 0", b"back 9"):
                channel.basic_nack(held[body])
            for body, level in ((b"3", 3), (b"-", None), (b"31", 31), (b"5", 5)):
                put(channel, "q", body, level)
            if checkpoints:
                connection.sleep(2)
        if start == 2:
            break
        broker_process.restart(kill=kill)
